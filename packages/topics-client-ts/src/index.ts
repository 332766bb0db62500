/** Client of topics, a persistent event engine: publish, read, tail and work, in browsers and Node. */

export type { ClaimOptions } from "./claiming.js";
export { type ClientOptions, type Match, Topics } from "./client.js";
export type { Answer, CallOptions, Connection, Input, OperationName } from "./connection.js";
export * from "./errors.js";
export type { Claimed, Gap, Job, Meta, NewRecord, Published, Schemas, TopicDeleted, TopicRecord } from "./items.js";
export type { Camel } from "./names.js";
export { OPERATIONS } from "./operations.js";
export type { BatchOptions, Config, Publisher, PublishOptions, RecordOptions } from "./publishing.js";
export type { Gaps, Reading, ReadOptions } from "./reading.js";
export type { components, operations, paths } from "./schema.js";
export type { Item, Tail, TailOptions } from "./tailing.js";
export { doubling, type Handler, type Worker, type WorkOptions } from "./working.js";
