"""A plan of three steps with one tool of our own, on whatever model is configured."""

import asyncio

from executor import run_job
from registry import ModelRegistry, tool


@tool(read_only=True)
def population(city: str) -> int:
    """Number of inhabitants of a European city.

    Args:
        city: The city's English name.
    """
    known = {"Lyon": 522_000, "Porto": 232_000}
    if city not in known:
        raise ValueError(f"no figure for {city!r}; there are {', '.join(known)}")
    return known[city]


async def main() -> None:
    models = ModelRegistry.from_env()  # or ModelRegistry.from_toml("models.toml")
    job = await run_job("Which of Lyon and Porto has more inhabitants, and by how much?", models, tools=[population])
    print(job.status, job.answer)
    for step in job.steps.values():
        print(step.id, step.status, step.model, step.usage.calls, step.error or "")
    print("tokens:", job.usage.input_tokens, "+", job.usage.output_tokens, "cost:", job.cost)
    await models.aclose()


if __name__ == "__main__":
    asyncio.run(main())
