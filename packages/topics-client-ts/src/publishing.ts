/**
 * Publishing: records become batches, and each batch one append with an idempotency key. A batch that is repeated has the
 * key of its first attempt, so the service appends it once.
 */

import { type Connection, randomName, segment } from "./connection.js";
import { TopicsError } from "./errors.js";
import type { Meta, NewRecord, Published, Schemas } from "./items.js";
import { type Camel, snake } from "./names.js";

/** Fields of a topic's configuration; the names of the service, with underscores, are taken, too. */
export type Config = Camel<Schemas["ConfigPatch"]> | Schemas["ConfigPatch"];

export interface BatchOptions {
  /** Node of each record without its own. */
  node?: string;
  /** Whether to create a missing topic. */
  create?: boolean;
  /** Configuration of the topic, if this creates it. */
  config?: Config;
  /** Makes the data of each record a value that JSON has. */
  encode?: (data: any) => unknown;
  disableBackpressure?: boolean;
  /** Most records of a batch, 1000 if absent. */
  batchRecords?: number;
  /** Most bytes of a batch, 1 MiB if absent. A single record may be larger. */
  batchBytes?: number;
}

export interface PublishOptions extends BatchOptions {
  /** A program that starts over can repeat a whole publish with the same records and the same key. */
  idempotencyKey?: string;
  signal?: AbortSignal;
}

export interface RecordOptions {
  tag?: string;
  meta?: Meta;
  delayMs?: number;
}

/** How long a batch is repeated with its key. Topics remember it for 120 s by default, and an attempt takes time. */
const KEPT_MS = 100_000;

const encoder = new TextEncoder();

function encoded({ data: given, tag, node, meta, delayMs }: NewRecord, encode: BatchOptions["encode"]): string {
  const data = encode === undefined ? given : encode(given);
  return JSON.stringify({ data: data ?? null, tag, node, meta, delay_ms: delayMs });
}

/** Encoded records of one append, and its idempotency key. */
export class Batch {
  readonly records: string[] = [];
  #bytes = 0;

  constructor(readonly key: string) {}

  /** Add the record if there is room; the first one always fits. */
  takes(record: string, { batchRecords = 1000, batchBytes = 1 << 20 }: BatchOptions): boolean {
    const size = encoder.encode(record).length;
    if (this.records.length > 0 && (this.records.length >= batchRecords || this.#bytes + size > batchBytes)) return false;
    this.records.push(record);
    this.#bytes += size;
    return true;
  }

  async append(connection: Connection, topic: string, options: BatchOptions, signal?: AbortSignal): Promise<Published> {
    const { node, create, disableBackpressure: disable_backpressure } = options;
    const config = options.config && snake(options.config);
    const fields = JSON.stringify({ idempotency_key: this.key, node, create, config, disable_backpressure });
    const body = `${fields.slice(0, -1)},"records":[${this.records.join(",")}]}`;
    const path = `/v0/topics/${segment(topic)}?return_seqs=false`;
    try {
      const told = (await connection.send("POST", path, body, { withinMs: KEPT_MS, signal })) as Schemas["Appended"];
      const { first_seq: firstSeq, last_seq: lastSeq, count, created, deduped } = told;
      return { topic, firstSeq, lastSeq, count, created, deduped, idempotencyKey: this.key };
    } catch (error) {
      if (error instanceof TopicsError) error.idempotencyKey = this.key;
      throw error;
    }
  }
}

/** Append records in batches, one after the other. The key of the first is `key`, those of the next `key:1`, `key:2`, …. */
export async function publishAll(
  connection: Connection,
  topic: string,
  records: Iterable<NewRecord> | AsyncIterable<NewRecord>,
  options: PublishOptions,
): Promise<Published> {
  const key = options.idempotencyKey ?? randomName();
  let batch = new Batch(key);
  let number = 0;
  let done: Published | undefined;
  const append = async () => {
    const part = await batch.append(connection, topic, options, options.signal);
    done = {
      ...part,
      firstSeq: done?.firstSeq ?? part.firstSeq,
      count: part.count + (done?.count ?? 0),
      created: part.created || (done?.created ?? false),
      deduped: part.deduped || (done?.deduped ?? false),
      idempotencyKey: key,
    };
  };
  for await (const record of records) {
    const text = encoded(record, options.encode);
    if (batch.takes(text, options)) continue;
    await append();
    number += 1;
    batch = new Batch(`${key}:${number}`);
    batch.takes(text, options);
  }
  if (batch.records.length > 0) await append();
  if (done === undefined) throw new TypeError("there are no records to publish");
  return done;
}

/**
 * Gathers records into batches. `await send()` waits while a full batch is written: that is the back-pressure. A record is
 * safe when a later `flush` or `close` has returned. After an error the batch stays, and the next flush repeats it with its
 * key.
 */
export class Publisher {
  /** Records that the service has acknowledged. */
  published = 0;
  #open = new Batch(randomName());
  readonly #full: Batch[] = [];
  #writing: Promise<void> = Promise.resolve();

  constructor(
    private readonly connection: Connection,
    readonly topic: string,
    private readonly options: BatchOptions,
  ) {}

  /** Add a record. If its batch is full, write that. */
  async send(data: unknown, record: Omit<NewRecord, "data"> = {}): Promise<void> {
    const text = encoded({ ...record, data }, this.options.encode);
    if (this.#open.takes(text, this.options)) return;
    this.#closeBatch();
    this.#open.takes(text, this.options);
    await this.#write();
  }

  /** Write all records that were sent. Throws what an append throws. */
  async flush(): Promise<void> {
    if (this.#open.records.length > 0) this.#closeBatch();
    await this.#write();
  }

  /** As `flush`. */
  close(): Promise<void> {
    return this.flush();
  }

  #closeBatch(): void {
    this.#full.push(this.#open);
    this.#open = new Batch(randomName());
  }

  #write(): Promise<void> {
    const written = this.#writing.then(async () => {
      for (let batch = this.#full[0]; batch !== undefined; batch = this.#full[0]) {
        this.published += (await batch.append(this.connection, this.topic, this.options)).count;
        this.#full.shift();
      }
    });
    this.#writing = written.catch(() => undefined);
    return written;
  }
}
