// A chat client that is not OpenAI's: Vercel's AI SDK, which reads reasoning_content. Prints what it understood as JSON.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const [baseURL] = process.argv.slice(2);
const dagwright = createOpenAICompatible({ name: "dagwright", baseURL, apiKey: "none", includeUsage: true });
const messages = [
  { role: "user", content: "Remember the number 1234." },
  { role: "assistant", content: [{ type: "reasoning", text: "noted" }, { type: "text", text: "I shall." }] },
  { role: "user", content: [{ type: "text", text: "Work out the result." }] },
];
const asked = { model: dagwright("dagwright:dag"), system: "Speak like a sailor.", messages, temperature: 0.5 };

const plain = await generateText(asked);

const streamed = streamText({ ...asked, onError: () => {} });
const kinds = [];
for await (const part of streamed.fullStream) if (kinds.at(-1) !== part.type) kinds.push(part.type);

async function failure(options) {
  try {
    await generateText({ ...asked, ...options });
    return null;
  } catch (error) {
    const { statusCode, message, isRetryable } = error;
    return { statusCode, message, isRetryable };
  }
}

console.log(
  JSON.stringify({
    plain: { text: plain.text, finish: plain.finishReason, usage: plain.usage, calls: plain.toolCalls.length },
    streamed: {
      kinds,
      text: await streamed.text,
      reasoning: await streamed.reasoningText,
      finish: await streamed.finishReason,
      usage: await streamed.usage,
      calls: (await streamed.toolCalls).length,
    },
    unknown: await failure({ model: dagwright("gpt") }),
    stop: await failure({ stopSequences: ["."] }),
  }),
);
