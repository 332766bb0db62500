// All that the pages need of the service: a request, and a stream that goes on after any loss of its connection.
import { api } from "./service.js";

const key = location.hash.slice(1); // behind the #, it is sent to no server

const MISSING = key
  ? "The service does not take the key behind the # of this address. Open the address that the example printed."
  : "The service asks for a key, and this address has none behind a #. Open the address that the example printed, with its key.";

export async function ask(method, path, body, headers = {}) {
  if (body) headers["content-type"] = "application/json";
  if (key) headers.authorization = `Bearer ${key}`;
  const answer = await fetch(api + path, { method, headers, body: body && JSON.stringify(body) });
  const said = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(answer.status === 401 ? MISSING : said.error.message), { code: said.error.code });
  return said;
}

export const topic = (name) => "/v0/topics/" + encodeURIComponent(name);

// Watches topics for ever: `show` gets the records as they are written. `asked` is the body of a watch, such as
// {prefix: "departures:"}. A new watch begins behind the last event of the one before, and a ticket opens its stream,
// since an EventSource cannot send a key. `connected` hears whether it is live, and why not if the service says why.
export async function follow(asked, show, connected = () => {}) {
  for (let cursor; ; ) {
    try {
      const watch = await ask("POST", "/v0/watch", { ...asked, cursor });
      const ticket = await ask("POST", "/v0/tickets", { path: watch.stream_url });
      await new Promise((_, lost) => {
        const events = new EventSource(api + ticket.url);
        const take = (event) => {
          cursor = event.lastEventId;
          const { topic, records = [] } = JSON.parse(event.data);
          for (const record of records) show(record.data, record, topic);
        };
        for (const kind of ["record", "caught-up", "tombstone"]) events.addEventListener(kind, take);
        events.onopen = () => connected(true);
        events.onerror = () => lost(events.close());
      });
    } catch (error) {
      connected(false, error?.code ? error.message : "connecting…");
      await new Promise((later) => setTimeout(later, 1000));
    }
  }
}

// An element: make("b", {className: "x"}, "text", another).
export const make = (name, fields = {}, ...inside) => {
  const element = Object.assign(document.createElement(name), fields);
  element.append(...inside);
  return element;
};
