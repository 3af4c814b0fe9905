/** A session that outlives connections: it comes back after pauses, and sends again what was not answered. */

import { connectivityState, type ClientDuplexStream } from "@grpc/grpc-js";
import { setTimeout as sleep } from "node:timers/promises";

import { PolytempoError, RefusedError, VersionError } from "./errors.js";
import { Assembler, FRAME_BYTES, frames, PROTOCOL, SESSION, type Frame, type Head, type Message } from "./messages.js";
import { Search } from "./search.js";
import { addressesOf, bearer, connect, credentialsOf, type End, type Endpoint } from "./transport.js";

/** Milliseconds in which a connection has to open where there is another server to go to. */
const OPEN_WITHIN = 3_000;

type Call = ClientDuplexStream<Frame, Frame>;

interface Request {
  head: Head;
  body: Uint8Array;
  resolve: (answer: Message) => void;
  reject: (error: Error) => void;
}

/** What the connection asks, and tells, whoever has it. */
export interface Owner {
  hello: () => Head;
  take: (message: Message) => void;
  failed: (error: PolytempoError) => void;
  log: (event: string, about: Record<string, unknown>) => void;
}

export class Connection {
  failure: PolytempoError | undefined;
  readonly #search: Search;
  readonly #pending = new Map<number, Request>();
  readonly #closing = new AbortController();
  #numbers = 0;
  #call: Call | undefined;
  #welcomed = false;
  #frameBytes = FRAME_BYTES;

  constructor(
    private readonly endpoint: Endpoint & { giveUpAfter?: number },
    private readonly token: string,
    private readonly owner: Owner,
  ) {
    this.#search = new Search(addressesOf(endpoint), endpoint.giveUpAfter);
    credentialsOf(endpoint, ""); // files that cannot be read are an error now
  }

  open(): void {
    this.#run().catch((error: unknown) => this.#fail(new PolytempoError(String(error))));
  }

  /** Send a request; its answer, however often the connection breaks in between. */
  ask(head: Head, body: Uint8Array = new Uint8Array()): Promise<Message> {
    return new Promise((resolve, reject) => {
      if (this.failure) return reject(this.failure);
      const request = { head: { ...head, request: ++this.#numbers }, body, resolve, reject };
      this.#pending.set(this.#numbers, request);
      if (this.#welcomed) this.#send(request);
    });
  }

  close(): void {
    this.#fail(new PolytempoError("The session is closed."));
    this.#closing.abort();
    this.#call?.cancel();
  }

  #send({ head, body }: Pick<Request, "head" | "body">): void {
    for (const frame of frames(head, body, this.#frameBytes)) this.#call?.write(frame);
  }

  #fail(error: PolytempoError): void {
    if (this.failure) return;
    this.failure = error;
    for (const request of this.#pending.values()) request.reject(error);
    this.#pending.clear();
    this.owner.failed(error);
  }

  async #run(): Promise<void> {
    while (!this.failure) {
      const address = this.#search.address;
      const [end, greeted] = await this.#session(address);
      if (this.failure) return;
      const hopeless = this.#search.hopeless(end, greeted);
      if (hopeless) return this.#fail(hopeless);
      this.owner.log("disconnected", { address, reason: end.details });
      await sleep(this.#search.pause(end), undefined, { signal: this.#closing.signal }).catch(() => undefined);
    }
  }

  /** One connection, from hello to its end. */
  #session(address: string): Promise<[End, boolean]> {
    return new Promise((resolve) => {
      const channel = connect(this.endpoint, address, this.#search.isOneOfSeveral);
      const call: Call = channel.makeBidiStreamRequest(
        SESSION.path,
        SESSION.requestSerialize,
        SESSION.responseDeserialize,
        bearer(this.token),
      );
      const patience = setTimeout(() => {
        if (channel.getChannel().getConnectivityState(false) !== connectivityState.READY) call.cancel();
      }, this.#search.isOneOfSeveral ? OPEN_WITHIN : 2 ** 31 - 1);
      const hello = ++this.#numbers;
      const assembler = new Assembler();
      call.on("data", (frame: Frame) => {
        try {
          const message = assembler.add(frame);
          if (message && this.#call === call) this.#take(message, hello);
        } catch (error) {
          this.owner.log("not understood", { address, reason: String(error) });
          call.cancel();
        }
      });
      call.on("error", () => undefined); // the status says the same
      call.on("status", (end: End) => {
        clearTimeout(patience);
        channel.close();
        const greeted = this.#welcomed;
        [this.#call, this.#welcomed] = [undefined, false];
        resolve([end, greeted]);
      });
      [this.#call, this.#frameBytes] = [call, FRAME_BYTES];
      this.#send({ head: { ...this.owner.hello(), request: hello }, body: new Uint8Array() });
    });
  }

  #take(message: Message, hello: number): void {
    const { refusal, welcome, answers } = message.head;
    if (refusal && (refusal.again || refusal.replaced || refusal.ends || !answers)) return this.#end(message);
    if (welcome) {
      if (welcome.protocol > PROTOCOL) return this.#fail(new VersionError(`It speaks protocol ${welcome.protocol}.`));
      this.#frameBytes = Math.min(welcome.frameBytes || FRAME_BYTES, FRAME_BYTES);
    }
    this.owner.take(message);
    if (answers === hello) {
      this.#search.noteSession();
      this.#welcomed = true;
      for (const request of this.#pending.values()) this.#send(request);
    } else if (answers) {
      this.#search.noteAnswer();
      this.#resolve(answers, message);
    }
  }

  #resolve(answers: number, message: Message): void {
    const request = this.#pending.get(answers);
    const { refusal } = message.head;
    this.#pending.delete(answers);
    if (refusal) request?.reject(new RefusedError(refusal.reason, refusal.void, refusal.failed));
    else request?.resolve(message);
  }

  /** A refusal that ends the session. One that is for now is forgotten; of any other, nothing is sent again. */
  #end(message: Message): void {
    const { refusal, answers } = message.head;
    this.owner.log("refused", { reason: refusal?.reason });
    if (refusal?.replaced) this.#search.noteDisplaced();
    if (!refusal?.again && !refusal?.replaced) {
      for (const number of answers ? [answers] : [...this.#pending.keys()]) this.#resolve(number, message);
    }
    this.#call?.cancel();
  }
}

