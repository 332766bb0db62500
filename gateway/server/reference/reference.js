// Shows the OpenAPI and the AsyncAPI document of the service: operations, parameters, bodies, examples. It fetches these two
// documents; other requests are sent when a person tries one.

import { el, prose } from "./elements.js";
import { tabs } from "./samples.js";
import { tryIt, useKey } from "./try.js";

const json = (value) => el("pre", { tabindex: "0" }, JSON.stringify(value, null, 2));

/** The part of a document that a reference names. */
function resolved(schema, whole) {
  if (!schema?.$ref) return schema;
  const path = schema.$ref.slice(2).split("/");
  return path.reduce((part, name) => part[name.replaceAll("~1", "/").replaceAll("~0", "~")], whole);
}

const nameOf = (reference) => reference.split("/").pop();

/** A type in few words. */
function typeOf(schema, whole) {
  if (schema === undefined || schema === true || Object.keys(schema).length === 0) return "any JSON";
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  const several = schema.anyOf ?? schema.oneOf;
  if (several && !schema.properties) return several.map((each) => typeOf(each, whole)).join(" | ");
  if (schema.prefixItems) return `[${schema.prefixItems.map((each) => typeOf(each, whole)).join(", ")}]`;
  const types = [schema.type ?? "any JSON"].flat();
  return types
    .map((type) => {
      if (type === "array") return `${typeOf(schema.items, whole)}[]`;
      if (type === "object" && typeof schema.additionalProperties === "object") {
        return `map of ${typeOf(schema.additionalProperties, whole)}`;
      }
      return type;
    })
    .join(" | ");
}

/** The bounds of a schema in few words. JSON.parse rounds one of 64 bits, so that is shown as a power of two. */
function boundsOf(schema) {
  const found = [];
  const exact = (number) => (Number.isSafeInteger(number) ? number : `2^${Math.round(Math.log2(number))} - 1`);
  const range = (least, most, unit) => {
    if (least !== undefined && most !== undefined) found.push(`${least} to ${exact(most)}${unit}`);
    else if (least !== undefined) found.push(`at least ${least}${unit}`);
    else if (most !== undefined) found.push(`at most ${exact(most)}${unit}`);
  };
  range(schema.minimum, schema.maximum, "");
  range(schema.minLength, schema.maxLength, " characters");
  range(schema.minItems, schema.maxItems, " items");
  range(schema.minProperties, schema.maxProperties, " fields");
  if (schema.default !== undefined && schema.default !== null) found.push(`default ${JSON.stringify(schema.default)}`);
  return found.join("; ");
}

/** The schemas that a field leads to, by name. */
function namesIn(schema, found = new Set()) {
  if (schema === null || typeof schema !== "object") return found;
  if (schema.$ref) found.add(schema.$ref);
  for (const key of ["items", "additionalProperties"]) namesIn(schema[key], found);
  for (const each of [...(schema.anyOf ?? []), ...(schema.oneOf ?? [])]) namesIn(each, found);
  return found;
}

/** One field or parameter. `above` are the schemas around it, which are not shown again. */
function field(name, schema, { required, description, whole, above }) {
  const bounds = boundsOf(schema);
  const inner = [...namesIn(schema)].filter((each) => !above.includes(each));
  return el(
    "div",
    {},
    el("dt", {}, el("code", {}, name), " ", el("span", { class: "soft" }, typeOf(schema, whole))),
    required ? el("span", { class: "need" }, " required") : null,
    schema.deprecated ? el("span", { class: "soft" }, " deprecated") : null,
    el(
      "dd",
      {},
      ...prose(description ?? schema.description),
      bounds ? el("div", { class: "soft" }, bounds) : null,
      schema.pattern ? el("div", { class: "soft" }, "pattern ", el("code", {}, schema.pattern)) : null,
      ...inner.map((each) =>
        el("details", {}, el("summary", {}, nameOf(each)), fields({ $ref: each }, whole, [...above, each])),
      ),
    ),
  );
}

/** The fields of a body. */
function fields(schema, whole, above = []) {
  const around = schema?.$ref ? [...above, schema.$ref] : above;
  const found = resolved(schema, whole);
  const rows = Object.entries(found?.properties ?? {}).map(([name, each]) =>
    field(name, each, { required: found.required?.includes(name), whole, above: around }),
  );
  const text = el("p", {}, ...prose(found?.description));
  return rows.length > 0 ? el("div", {}, text, el("dl", { class: "fields" }, ...rows)) : el("p", {}, typeOf(found, whole));
}

function example(value) {
  return value === undefined ? null : el("div", {}, el("h4", {}, "Example"), json(value));
}

/** What a client brings, one of several. */
function needs(security) {
  if (!security?.length) return null;
  const ways = security.map((each) => (each.$ref ? nameOf(each.$ref) : Object.keys(each)[0]));
  return el("p", { class: "soft" }, `Needs a ${ways.join(", or a ")}.`);
}

function response(status, told, whole) {
  const found = resolved(told, whole);
  const schema = found.content?.["application/json"]?.schema;
  const codes = found["x-error-codes"];
  const body = schema && !codes ? [fields(schema, whole), example(resolved(schema, whole).examples?.[0])] : [];
  const head = [el("code", {}, status), " ", ...prose(found.description)];
  if (body.length === 0) return el("div", {}, ...head);
  return el("details", {}, el("summary", {}, ...head), ...body);
}

function request(method, path, operation, whole) {
  const body = resolved(operation.requestBody, whole);
  const schema = body?.content["application/json"].schema;
  return el(
    "article",
    { id: operation.operationId, "data-text": `${operation.operationId} ${path} ${operation.summary}`.toLowerCase() },
    el("h3", {}, ...prose(operation.summary)),
    el("p", { class: "call" }, el("span", { class: `method ${method}` }, method.toUpperCase()), ` ${path}`),
    operation.description.startsWith(`${operation.summary}.`)
      ? el("p", {}, ...prose(operation.description.slice(operation.summary.length + 1)))
      : el("p", {}, ...prose(operation.description)),
    operation.security.length > 1 ? needs(operation.security) : null,
    tabs(operation["x-codeSamples"]),
    operation.responses["101"] ? null : tryIt(method, path, operation, resolved(schema, whole)?.examples?.[0]),
    operation.parameters?.length ? el("h4", {}, "Parameters") : null,
    operation.parameters?.length
      ? el(
          "dl",
          { class: "fields" },
          ...operation.parameters.map((each) =>
            field(`${each.name} (${each.in})`, each.schema, { ...each, whole, above: [] }),
          ),
        )
      : null,
    schema ? el("h4", {}, body.required ? "Body" : "Body, optional") : null,
    schema ? fields(schema, whole) : null,
    schema ? example(resolved(schema, whole).examples?.[0]) : null,
    el("h4", {}, "Answers"),
    ...Object.entries(operation.responses).map(([status, told]) => response(status, told, whole)),
  );
}

function message(told, whole) {
  return el(
    "details",
    {},
    el("summary", {}, el("code", {}, told.name), " ", ...prose(told.summary)),
    fields(told.payload, whole),
    example(told.examples?.[0]?.payload),
  );
}

function channel(name, told, whole) {
  const of = Object.values(whole.operations).filter((each) => nameOf(each.channel.$ref) === name);
  const named = (action) =>
    of.filter((each) => each.action === action).flatMap((each) => [...each.messages, ...(each.reply?.messages ?? [])]);
  const received = new Set(of.filter((each) => each.action === "receive").flatMap((each) => each.messages.map(({ $ref }) => $ref)));
  const all = new Set([...named("receive"), ...named("send")].map(({ $ref }) => $ref));
  const sent = [...all].filter((each) => !received.has(each));
  const list = (title, references) =>
    references.length === 0 ? [] : [el("h4", {}, title), ...references.map(($ref) => message(resolved({ $ref }, whole), whole))];
  const parameters = Object.entries(told.parameters ?? {});
  return el(
    "article",
    { id: `channel-${name}`, "data-text": `${name} ${told.title} ${told.address}`.toLowerCase() },
    el("h3", {}, told.title),
    el("p", { class: "call" }, el("span", { class: "method" }, name === "websocket" ? "WebSocket" : "GET"), ` ${told.address}`),
    el("p", {}, ...prose(told.description)),
    needs(of[0].security),
    parameters.length ? el("h4", {}, "Parameters") : null,
    parameters.length
      ? el("dl", { class: "fields" }, ...parameters.map(([key, { description }]) => field(key, { type: "string" }, { description, required: true, whole, above: [] })))
      : null,
    ...list("Sent by the client", [...received]),
    ...list("Sent by the service", sent),
  );
}

function section(id, title, text, articles) {
  const links = articles.map((each) => el("li", {}, el("a", { href: `#${each.id}` }, each.id.replace("channel-", ""))));
  document.getElementById("contents").append(el("h2", {}, title), el("ul", {}, ...links));
  const heading = el("h2", { id }, title);
  document.getElementById("reference").append(el("section", {}, heading, el("p", {}, ...prose(text)), ...articles));
}

function show(openapi, asyncapi) {
  const operations = Object.entries(openapi.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method, operation })),
  );
  for (const { name, description } of openapi.tags) {
    const last = ({ method }) => (method === "delete" ? 1 : 0);
    const of = operations.filter(({ operation }) => operation.tags.includes(name)).sort((a, b) => last(a) - last(b));
    const articles = of.map(({ path, method, operation }) => request(method, path, operation, openapi));
    section(`tag-${name}`, name[0].toUpperCase() + name.slice(1), description, articles);
  }
  const channels = Object.entries(asyncapi.channels).map(([name, told]) => channel(name, told, asyncapi));
  section("messages", "Events and messages", asyncapi.info.description, channels);
  const keyed = openapi.components.securitySchemes !== undefined;
  document.getElementById("access").hidden = !keyed;
  const lines = [`export TOPICS_URL=${location.origin}`, ...(keyed ? ["export TOPICS_TOKEN=…  # your key"] : [])];
  document.getElementById("environment").textContent = lines.join("\n");
  document.getElementById("state").textContent = `Version ${openapi.info.version}. ${openapi.info.description}`;
}

function filter() {
  const words = document.getElementById("filter").value.toLowerCase().split(/\s+/);
  for (const article of document.querySelectorAll("article")) {
    article.hidden = !words.every((word) => article.dataset.text.includes(word));
    document.querySelector(`nav a[href="#${article.id}"]`).parentElement.hidden = article.hidden;
  }
}

async function fetched(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: HTTP status ${response.status}`);
  return response.json();
}

try {
  show(...(await Promise.all(["/v0/openapi.json", "/v0/asyncapi.json"].map(fetched))));
  document.getElementById("filter").addEventListener("input", filter);
  document.getElementById("key").addEventListener("input", (event) => useKey(event.target.value));
  document.getElementById("access").addEventListener("submit", (event) => event.preventDefault());
  document.getElementById(location.hash.slice(1))?.scrollIntoView();
} catch (error) {
  const state = document.getElementById("state");
  state.className = "bad";
  state.textContent = `The documents cannot be shown: ${error.message}`;
}
