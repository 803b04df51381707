// The API's description as a page: /openapi.json, read by people. Texts are only ever set as texts, never as HTML.

const DEEP = 12; // levels of a schema that are shown
const main = document.getElementById("operations");

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** A text in which `words` between backticks are code, and blank lines part paragraphs. */
function prose(text) {
  return text.split(/\n\s*\n/).map((part) =>
    element("p", {}, ...part.split("`").map((piece, at) => (at % 2 ? element("code", {}, piece) : piece))));
}

class Api {
  constructor(description) {
    this.description = description;
  }

  /** What a reference leads to, with what stands beside it. */
  resolved(schema) {
    const { $ref: to, ...beside } = schema ?? {};
    if (!to?.startsWith("#/")) return schema ?? {};
    const found = to.slice(2).split("/").reduce((at, key) => at?.[key], this.description);
    return { ...found, ...beside, title: to.split("/").pop() };
  }

  /** The kind of a value in a few words. */
  kind(schema) {
    const { type, enum: values, const: only, items, anyOf, oneOf, title, format } = this.resolved(schema);
    if (only !== undefined) return JSON.stringify(only);
    if (values) return values.map((value) => JSON.stringify(value)).join(" | ");
    if (anyOf || oneOf) return (anyOf ?? oneOf).map((one) => this.kind(one)).join(" | ");
    if (type === "array") return `list of ${items ? this.kind(items) : "anything"}`;
    if (type === "object" && schema.$ref) return title;
    return [type].flat().filter(Boolean).join(" | ") + (format ? ` (${format})` : "") || "anything";
  }

  /** The bounds of a value. */
  bounds(schema) {
    const { minimum, exclusiveMinimum, maximum, minLength, maxLength, minItems, maxItems, pattern, default: usual } =
      this.resolved(schema);
    const words = [];
    if (minimum !== undefined) words.push(`≥ ${minimum}`);
    if (exclusiveMinimum !== undefined) words.push(`> ${exclusiveMinimum}`);
    if (maximum !== undefined) words.push(`≤ ${maximum}`);
    if (minLength || maxLength !== undefined) words.push(`${minLength ?? 0} to ${maxLength ?? "any number of"} characters`);
    if (minItems || maxItems !== undefined) words.push(`${minItems ?? 0} to ${maxItems ?? "any number of"} entries`);
    if (pattern) words.push(`as ${pattern}`);
    if (usual !== undefined && usual !== null && usual !== "") words.push(`usually ${JSON.stringify(usual)}`);
    return words.length ? ` (${words.join(", ")})` : "";
  }

  /** The schemas of objects that a value may be made of. */
  *objects(schema, seen) {
    const found = this.resolved(schema);
    if (seen.includes(schema?.$ref)) return;
    if (found.properties) yield [schema, found];
    for (const one of found.anyOf ?? found.oneOf ?? found.allOf ?? []) yield* this.objects(one, seen);
    if (found.items) yield* this.objects(found.items, seen);
  }

  /** The fields of a value, those of what they hold below them. */
  fields(schema, seen = []) {
    const lists = [];
    if (seen.length > DEEP) return lists;
    for (const [at, { properties, required = [] }] of this.objects(schema, seen)) {
      const rows = Object.entries(properties).map(([name, value]) =>
        this.field(name, value, required.includes(name), [...seen, at.$ref]));
      lists.push(element("ul", { class: "fields" }, ...rows));
    }
    return lists;
  }

  field(name, schema, needed, seen) {
    const told = this.resolved(schema).description;
    const head = element("span", {}, element("code", needed ? { class: "needed" } : {}, name), ` ${this.kind(schema)}`,
      element("span", { class: "quiet" }, this.bounds(schema), needed ? ", needed" : ""));
    return element("li", {}, head, ...(told ? prose(told) : []), ...this.fields(schema, seen));
  }

  /** A request that can be pasted into a terminal. */
  example(method, path, operation) {
    const schema = operation.requestBody?.content?.["application/json"]?.schema;
    const { properties = {}, required = [] } = this.resolved(schema);
    const names = required.length ? required : "goal" in properties ? ["goal"] : [];
    const body = Object.fromEntries(names.map((name) => [name, this.sample(properties[name])]));
    const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
    const words = ["curl", ...(method === "get" ? [] : ["-X", method.toUpperCase()]), `'${location.origin}${path}'`];
    if (operation.security?.length) words.push("-H 'Authorization: Bearer KEY'");
    if (names.length) words.push(`--json '${quoted}'`);
    return words.join(" ");
  }

  sample(schema) {
    const { type, enum: values, anyOf, default: usual } = this.resolved(schema);
    if (usual) return usual;
    if (values) return values[0];
    if (anyOf) return this.sample(anyOf[0]);
    return { string: "…", integer: 1, number: 1, boolean: true, array: [], object: {} }[type] ?? "…";
  }

  /** What one route takes and gives. */
  operation(method, path, operation) {
    const parts = [...prose(operation.description ?? "")];
    const parameters = (operation.parameters ?? []).map((one) => this.resolved(one));
    if (parameters.length) {
      const rows = parameters.map((one) =>
        this.field(`${one.name}`, { description: `In the ${one.in}.`, ...one.schema }, one.required, []));
      parts.push(element("h3", {}, "Parameters"), element("ul", { class: "fields" }, ...rows));
    }
    for (const [kind, { schema }] of Object.entries(operation.requestBody?.content ?? {}))
      parts.push(element("h3", {}, "Body: ", element("code", {}, kind)), ...prose(this.resolved(schema).description ?? ""),
        ...this.fields(schema));
    for (const [status, answer] of Object.entries(operation.responses ?? {})) {
      const content = Object.entries(this.resolved(answer).content ?? {});
      const kinds = content.map(([kind]) => kind).join(", ");
      parts.push(element("h3", {}, `Answer ${status}`, element("span", { class: "quiet" }, kinds && `: ${kinds}`)),
        ...prose(answer.description ?? ""), ...content.flatMap(([, { schema }]) => this.fields(schema)));
    }
    const title = element("summary", {}, element("span", { class: `method ${method}` }, method.toUpperCase()),
      element("span", { class: "path" }, path), element("span", {}, operation.summary ?? ""));
    const made = element("details", { id: `${method}${path}` }, title,
      element("div", {}, element("pre", {}, this.example(method, path, operation)), ...parts));
    return made;
  }

  /** All routes, by their tags. */
  *sections() {
    const tags = new Map();
    for (const [path, methods] of Object.entries(this.description.paths))
      for (const [method, operation] of Object.entries(methods)) {
        const tag = operation.tags?.[0] ?? "more";
        tags.set(tag, [...(tags.get(tag) ?? []), this.operation(method, path, operation)]);
      }
    for (const [tag, operations] of tags) yield element("section", {}, element("h2", {}, tag), ...operations);
  }
}

function find(words) {
  let shown = 0;
  for (const section of main.querySelectorAll("section")) {
    let some = false;
    for (const one of section.querySelectorAll(":scope > details")) {
      one.hidden = !words.every((word) => one.textContent.toLowerCase().includes(word));
      some ||= !one.hidden;
      shown += one.hidden ? 0 : 1;
    }
    section.hidden = !some;
  }
  document.getElementById("found").textContent = words.length ? `${shown} routes` : "";
}

function openNamed() {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (named instanceof HTMLDetailsElement) named.open = true;
  named?.scrollIntoView();
}

async function show() {
  try {
    const answer = await fetch("/openapi.json");
    if (!answer.ok) throw new Error(`the service answered ${answer.status}`);
    const description = await answer.json();
    document.getElementById("summary").prepend(`${description.info.summary ?? ""} `);
    main.append(...new Api(description).sections());
  } catch (error) {
    main.append(element("p", { role: "alert" }, `The description can't be read: ${error.message}`));
  }
  main.removeAttribute("aria-busy");
  openNamed();
}

document.getElementById("find").addEventListener("input", (event) =>
  find(event.target.value.toLowerCase().split(/\s+/).filter(Boolean)));
addEventListener("hashchange", openNamed);
main.addEventListener("toggle", (event) => {
  if (event.target.open && event.target.id) history.replaceState(null, "", `#${encodeURIComponent(event.target.id)}`);
}, true);
await show();
