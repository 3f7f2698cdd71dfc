// Live calls, by the official SDK alone: a stream, tools, structured output, and a stream given up.
// It knows the gateway by OPENAI_BASE_URL and OPENAI_API_KEY. Takes the model's name.
import assert from "node:assert/strict";
import OpenAI from "openai";

const model = process.argv[2];
const client = new OpenAI({ maxRetries: 10 });
const messages = [{ role: "user", content: "Tell me about trains, please." }];
const same = { model, messages, temperature: 0 };

// A stream says what the whole answer says, and ends with the usage
const whole = await client.chat.completions.create({ ...same, max_tokens: 12 });
const stream = await client.chat.completions.create({
  ...same,
  max_tokens: 12,
  stream: true,
  stream_options: { include_usage: true },
});
let text = "";
let usage;
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, whole.choices[0].message.content);
assert.equal(usage.completion_tokens, 12);

// Tools, and structured output
const unit = { enum: ["celsius", "kelvin"] };
const parameters = {
  type: "object",
  properties: { unit },
  required: ["unit"],
  additionalProperties: false,
};
const called = await client.chat.completions.create({
  ...same,
  max_tokens: 200,
  tools: [{ type: "function", function: { name: "weather", parameters } }],
  tool_choice: { type: "function", function: { name: "weather" } },
});
const call = called.choices[0].message.tool_calls[0].function;
assert.equal(call.name, "weather");
assert.ok(unit.enum.includes(JSON.parse(call.arguments).unit));
const formed = await client.chat.completions.create({
  ...same,
  max_tokens: 60,
  response_format: { type: "json_schema", json_schema: { name: "weather", schema: parameters } },
});
assert.ok(unit.enum.includes(JSON.parse(formed.choices[0].message.content).unit));

// Responses stream, too
const types = new Set();
const responses = await client.responses.create({
  model,
  input: "Trains?",
  max_output_tokens: 8,
  stream: true,
});
for await (const event of responses) types.add(event.type);
assert.ok(types.has("response.created") && types.has("response.output_text.delta"));

// A stream that is given up
const endless = await client.chat.completions.create({ ...same, max_tokens: 900, stream: true });
for await (const chunk of endless) if (chunk) break;

// What cannot run
await assert.rejects(
  client.chat.completions.create({ ...same, temperature: 9 }),
  (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature",
);
