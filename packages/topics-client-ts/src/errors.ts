/** Errors: a class per error code of the service, `Unavailable` if no whole answer came, `GapError` for lost records. */

import type { Gap, TopicRecord } from "./items.js";
import type { components } from "./schema.js";

export type ErrorCode = components["schemas"]["Error"]["code"];

export interface ErrorFacts {
  code?: string;
  detail?: Record<string, unknown>;
  /** The HTTP status, 0 without an answer. */
  status?: number;
  /** The pause that the service asks for. */
  retryAfterMs?: number | undefined;
}

/** A request that failed. `code` is stable, `message` is for people, `detail` is what the service adds. */
export class TopicsError extends Error {
  readonly code: string;
  readonly detail: Record<string, unknown>;
  readonly status: number;
  readonly retryAfterMs: number | undefined;
  /** Of a publish: with this key, it can be repeated safely. */
  idempotencyKey: string | undefined;

  constructor(message: string, { code = "", detail = {}, status = 0, retryAfterMs }: ErrorFacts = {}) {
    super(message);
    this.name = new.target.name;
    this.code = code;
    this.detail = detail;
    this.status = status;
    this.retryAfterMs = retryAfterMs;
  }

  /** Whether the same request may succeed later. */
  get transient(): boolean {
    return false;
  }

  /** `not_done` if the request was surely not carried out, else `unknown`. */
  get outcome(): string {
    return String(this.detail["outcome"] ?? (this.status >= 400 && this.status < 500 ? "not_done" : "unknown"));
  }
}

class TransientError extends TopicsError {
  override get transient(): boolean {
    return true;
  }
}

/** No connection, or no whole answer; also the answer of a proxy that has no connection. */
export class Unavailable extends TransientError {}

/** Records are lost; `gap` says which. The iterator is after the gap and can be read further. */
export class GapError extends Error {
  override readonly name = "GapError";

  constructor(readonly gap: Gap) {
    super(`${gap.topic}: records ${gap.firstSeq} to ${gap.lastSeq} are lost (${gap.reason})`);
  }
}

/** The data of a record is not what `decode` takes; `record` has it as it came. The iterator can be read on after it. */
export class DecodeError extends Error {
  override readonly name = "DecodeError";

  constructor(
    readonly record: TopicRecord,
    override readonly cause: unknown,
  ) {
    super(`${record.topic}: record ${record.seq} was not decoded: ${(cause as Error | undefined)?.message ?? cause}`);
  }
}

export class InvalidRequest extends TopicsError {}
export class BatchTooLarge extends TopicsError {}
export class RecordTooLarge extends TopicsError {}
export class Unauthorized extends TopicsError {}
export class Forbidden extends TopicsError {}
/** The base of what does not exist: a topic, a router, a cursor, a watch session. */
export class NotFound extends TopicsError {}
export class TopicNotFound extends NotFound {}
export class RouterNotFound extends NotFound {}
export class CursorNotFound extends NotFound {}
export class MethodNotAllowed extends TopicsError {}
export class NotAcceptable extends TopicsError {}
export class RequestTimeout extends TopicsError {}
export class RouterCycle extends TopicsError {}
export class TopicExistsIncompatible extends TopicsError {}
export class TopicNotEmpty extends TopicsError {}
export class NotAQueue extends TopicsError {}
export class PayloadTooLarge extends TopicsError {}
export class UnsupportedMediaType extends TopicsError {}
export class TopicFull extends TopicsError {}
/** The service is busy, or a cap is reached: `detail.limit` names it. */
export class Throttled extends TransientError {}
export class HeadersTooLarge extends TopicsError {}
export class Internal extends TopicsError {}
/** The topic's shard is starting, or the topic is set apart: `detail.reason` says which. */
export class NotReady extends TransientError {}
export class ShuttingDown extends TransientError {}

export const ERRORS: Record<ErrorCode, typeof TopicsError> = {
  invalid_request: InvalidRequest,
  batch_too_large: BatchTooLarge,
  record_too_large: RecordTooLarge,
  unauthorized: Unauthorized,
  forbidden: Forbidden,
  not_found: NotFound,
  topic_not_found: TopicNotFound,
  router_not_found: RouterNotFound,
  cursor_not_found: CursorNotFound,
  method_not_allowed: MethodNotAllowed,
  not_acceptable: NotAcceptable,
  request_timeout: RequestTimeout,
  router_cycle: RouterCycle,
  topic_exists_incompatible: TopicExistsIncompatible,
  topic_not_empty: TopicNotEmpty,
  not_a_queue: NotAQueue,
  payload_too_large: PayloadTooLarge,
  unsupported_media_type: UnsupportedMediaType,
  topic_full: TopicFull,
  throttled: Throttled,
  headers_too_large: HeadersTooLarge,
  internal: Internal,
  not_ready: NotReady,
  shutting_down: ShuttingDown,
};

/** The error of a code, as bodies and WebSocket messages tell it. */
export function errorOfCode(code: string, message: string, facts: ErrorFacts): TopicsError {
  const kind = Object.hasOwn(ERRORS, code) ? ERRORS[code as ErrorCode] : TopicsError;
  return new kind(message, { ...facts, code });
}

/** The error that an answer tells. An answer without the service's error body is that of a proxy. */
export function errorOf(status: number, body: unknown, retryAfter: string | null): TopicsError {
  const seconds = Number(retryAfter || NaN);
  const asked = seconds >= 0 ? seconds * 1000 : undefined;
  const told = (body as { error?: components["schemas"]["Error"] } | undefined)?.error;
  if (typeof told?.code !== "string") {
    const kind = [429, 502, 503, 504].includes(status) ? Unavailable : TopicsError;
    return new kind(`HTTP status ${status}`, { status, retryAfterMs: asked });
  }
  const detail = told.detail ?? {};
  const exact = detail["retry_after_ms"];
  const retryAfterMs = typeof exact === "number" ? exact : asked;
  return errorOfCode(told.code, told.message, { detail, status, retryAfterMs });
}
