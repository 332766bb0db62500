/** Names of fields: those of the service have underscores, those of this client are in camelCase. */

type Name<S extends string> = S extends `$${infer R}`
  ? Name<R>
  : S extends `${infer A}_${infer B}`
    ? `${A}${Capitalize<Name<B>>}`
    : S;

/** A type of the service with the names of this client. The data and meta of jobs stay as they are. */
export type Camel<T> = T extends readonly (infer E)[]
  ? number extends T["length"]
    ? Camel<E>[]
    : T
  : T extends object
    ? { [K in keyof T as K extends string ? Name<K> : K]: K extends "data" | "meta" ? T[K] : Camel<T[K]> }
    : T;

/** An answer with the names of this client. */
export function camel<T>(told: T): Camel<T> {
  if (Array.isArray(told)) return told.map(camel) as Camel<T>;
  if (typeof told !== "object" || told === null) return told as Camel<T>;
  const fields = Object.entries(told).map(([name, value]) => [
    name.replace(/^\$/, "").replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase()),
    name === "data" || name === "meta" ? value : camel(value),
  ]);
  return Object.fromEntries(fields) as Camel<T>;
}

/** Fields with the names of the service, which are taken as they are, too. */
export function snake<T extends object>(fields: T | Camel<T>): T {
  const named = (name: string) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  return Object.fromEntries(Object.entries(fields).map(([name, value]) => [named(name), value])) as T;
}
