/**
 * Endpoint: the URL of the service that a client uses, and the token that it sends. In Node they are found as the command
 * line finds them; elsewhere there are no variables and no files.
 *
 *     the URL that is given           that URL
 *     else `context`                  the URL of that context
 *     else TOPICS_URL                 that URL
 *     else TOPICS_CONTEXT, else the context in use: its URL
 *     else                            http://127.0.0.1:4000
 *
 * The token is `token`, else that of the context if the URL is from it, else TOPICS_TOKEN. A token that was not given in
 * the program goes only where it belongs: that of a context to its URL, and TOPICS_TOKEN, if TOPICS_URL is set, to that
 * scheme, host and port. An empty `token` sends none.
 *
 * `topics context add` writes the file of contexts. One that others may read, or that another user owns, is refused: it has
 * a key, or could send one elsewhere.
 */

const URL_HERE = "http://127.0.0.1:4000";

export interface EndpointOptions {
  /** An API key. An empty one sends none, also if TOPICS_TOKEN is set. */
  token?: string | undefined;
  /** @deprecated The old name of `token`. */
  key?: string | undefined;
  /** In Node: a context of the command line, by its name. */
  context?: string | undefined;
}

export interface Endpoint {
  url: string;
  token: string | undefined;
}

type Environment = Record<string, string | undefined>;

/** What this module uses of Node, which it does not import: browsers and bundlers have none. */
interface Process {
  versions?: { node?: string };
  env: Environment;
  getuid?: () => number;
  getBuiltinModule?: (name: string) => any;
}

interface Context {
  url: string;
  token?: string | null;
  token_file?: string | null;
  keyring?: boolean;
}

/** URL and token. Throws `TypeError` if they cannot be used. */
export function resolve(url: string | undefined, options: EndpointOptions): Endpoint {
  const { token = options.key, context } = options;
  if (options.token !== undefined && options.key !== undefined) {
    throw new TypeError("token and key, its old name, are both given; give the token");
  }
  const { process } = globalThis as { process?: Process };
  const found = process?.versions?.node ? inNode(url, token, context, process) : { url: url ?? URL_HERE, token };
  if (found.token && !/^[\x21-\x7e]+$/.test(found.token)) {
    throw new TypeError("the token has a space, a line break or another character that no key has");
  }
  return { url: found.url, token: found.token || undefined };
}

function inNode(asked: string | undefined, token: string | undefined, context: string | undefined, process: Process): Endpoint {
  if (asked !== undefined && context !== undefined) {
    throw new TypeError("a URL and a context both name a service; give one of them");
  }
  const { TOPICS_URL: theirs, TOPICS_CONTEXT, TOPICS_TOKEN } = process.env;
  let url = asked;
  if (url === undefined && (context !== undefined || !theirs)) {
    const found = contextOf(context ?? TOPICS_CONTEXT, process);
    url = found?.url;
    if (token === undefined && found !== undefined) token = found.token();
  }
  url ??= theirs || URL_HERE;
  if (token === undefined && (!theirs || originOf(theirs) === originOf(url))) token = TOPICS_TOKEN;
  originOf(url);
  return { url, token };
}

function originOf(url: string): string {
  const parsed = URL.canParse(url) ? new URL(url) : undefined;
  if (parsed === undefined || !/^https?:$/.test(parsed.protocol)) {
    throw new TypeError(`${JSON.stringify(url)} is not the URL of a service: ${URL_HERE} is one`);
  }
  return parsed.origin;
}

/** A context, by default the one in use; undefined if none is named. */
function contextOf(name: string | undefined, process: Process): { url: string; token: () => string | undefined } | undefined {
  if (process.getBuiltinModule === undefined) {
    if (name) throw new TypeError("contexts are read by Node 20.16 or later: give a URL and a token");
    return undefined;
  }
  const { join } = process.getBuiltinModule("node:path");
  const { XDG_CONFIG_HOME: configured, HOME } = process.env;
  const base = configured || join(HOME || process.getBuiltinModule("node:os").homedir(), ".config");
  const file: string = join(base, "topics", "contexts.json");
  let known: Record<string, Context> = {};
  try {
    const told = JSON.parse(readPrivate(file, process));
    known = told.contexts;
    if (told.current === undefined || typeof known !== "object" || Array.isArray(known)) throw new SyntaxError();
    name ||= told.current as string | undefined;
    Object.keys(known); // throws if it is null
  } catch (error) {
    if (error instanceof SyntaxError || (error instanceof TypeError && !(error instanceof Refused))) {
      throw new TypeError(`${file} is not a file of contexts: \`topics context add\` makes one`);
    }
    if ((error as { code?: string }).code !== "ENOENT") throw error;
  }
  if (!name) return undefined;
  const found = Object.hasOwn(known, name) ? known[name] : undefined;
  if (found === undefined) {
    const others = Object.keys(known).sort().join(", ") || "none";
    throw new TypeError(`there is no context ${JSON.stringify(name)}; known: ${others}. Make it with \`topics context add\``);
  }
  if (typeof found.url !== "string") throw new TypeError(`${file} is not a file of contexts: \`topics context add\` makes one`);
  return { url: found.url, token: () => tokenOf(name, found, process) };
}

function tokenOf(name: string, context: Context, process: Process): string | undefined {
  if (context.token_file) {
    const first = readPrivate(context.token_file, process).split(/\r?\n/, 1)[0]?.trim();
    if (!first) throw new TypeError(`${context.token_file}, which context ${name} names, has no key in its first line`);
    return first;
  }
  if (context.keyring) throw new TypeError(`context ${name} has its key in the keyring: give a token, or set TOPICS_TOKEN`);
  return context.token ?? undefined;
}

class Refused extends TypeError {}

/** The text of a file that only its user may read. */
function readPrivate(path: string, process: Process): string {
  const fs = process.getBuiltinModule?.("node:fs");
  const file = fs.openSync(path, "r");
  try {
    const { uid, mode } = fs.fstatSync(file);
    if (process.getuid !== undefined) {
      if (uid !== process.getuid() && uid !== 0) {
        throw new Refused(`${path} belongs to user ${uid}, who could have you send keys elsewhere`);
      }
      if (mode & 0o077) throw new Refused(`others may read ${path}, which has a key: chmod 600 ${path}`);
    }
    return new TextDecoder("utf-8", { fatal: true }).decode(fs.readFileSync(file));
  } finally {
    fs.closeSync(file);
  }
}
