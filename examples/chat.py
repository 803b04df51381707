"""The planner as a model for any chat client: start the service (`make serve`), then run this.

Progress goes to stderr, the answer to stdout.
"""

import os
import sys

from openai import OpenAI

URL = os.environ.get("DAGWRIGHT_URL", "http://127.0.0.1:8080")
QUESTION = "Which of Lyon and Porto has more inhabitants, and by how much?"


def main() -> None:
    with OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("DAGWRIGHT_KEY", "none")) as client:
        messages = [{"role": "user", "content": QUESTION}]
        for chunk in client.chat.completions.create(model="dagwright", messages=messages, stream=True):
            delta = chunk.choices[0].delta
            print(getattr(delta, "reasoning_content", ""), end="", file=sys.stderr, flush=True)
            print(delta.content or "", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
