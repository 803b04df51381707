"""The planner as a model for chat clients, in the shape of OpenAI's chat completions."""
