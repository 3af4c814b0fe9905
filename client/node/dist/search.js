/** Which server to try next, after which pause, and when to give up. */
import { CertificateError, DisplacedError, UnreachableError } from "./errors.js";
import { failureOf, isElsewhere } from "./transport.js";
/** Milliseconds. */
const [FIRST_PAUSE, LONGEST_PAUSE, LONGEST_AT_FIRST, AT_FIRST] = [100, 10_000, 1_000, 60_000];
const [DISPLACED_TIMES, DISPLACED_WITHIN] = [5, 600_000];
export class Search {
    addresses;
    giveUpAfter;
    #turn = 0;
    #pause = FIRST_PAUSE;
    #answered = -Infinity;
    #lastSession = performance.now();
    #elsewhere = 0;
    #wrongCertificates = 0;
    #ever = false;
    #displaced = [];
    /** `giveUpAfter`: seconds without a session; undefined: never. */
    constructor(addresses, giveUpAfter) {
        this.addresses = addresses;
        this.giveUpAfter = giveUpAfter;
    }
    get address() {
        return this.addresses[this.#turn];
    }
    get isOneOfSeveral() {
        return this.addresses.length > 1;
    }
    noteSession() {
        this.#ever = true;
        this.#elsewhere = this.#wrongCertificates = 0;
    }
    noteAnswer() {
        [this.#pause, this.#answered] = [FIRST_PAUSE, performance.now()];
    }
    noteDisplaced() {
        this.#displaced = [...this.#displaced, performance.now()].slice(-DISPLACED_TIMES);
    }
    /** What to give up with after this end; undefined to try again. */
    hopeless(end, greeted) {
        const now = performance.now();
        if (greeted)
            this.#lastSession = now;
        const failure = failureOf(end, this.address);
        if (failure instanceof CertificateError) {
            this.#wrongCertificates += 1;
            if (!this.#ever && this.#wrongCertificates >= this.addresses.length)
                return failure;
        }
        else if (failure) {
            return failure;
        }
        if (this.#displaced.length === DISPLACED_TIMES && now - this.#displaced[0] < DISPLACED_WITHIN) {
            return new DisplacedError(`${this.address}: another program uses this client's token. Give each its own.`);
        }
        if (this.giveUpAfter !== undefined && now - this.#lastSession >= this.giveUpAfter * 1_000) {
            return new UnreachableError(`No server for ${this.giveUpAfter} s, the last time because: ${end.details}`);
        }
        return undefined;
    }
    /** Go on to the next address: how long to wait before. */
    pause(end) {
        this.#turn = (this.#turn + 1) % this.addresses.length;
        this.#elsewhere = isElsewhere(end) ? this.#elsewhere + 1 : 0;
        if (this.#elsewhere % this.addresses.length)
            return 0;
        const pause = this.#pause * (0.5 + Math.random() / 2);
        const soon = this.isOneOfSeveral || performance.now() - this.#answered < AT_FIRST;
        this.#pause = Math.min(2 * this.#pause, soon ? LONGEST_AT_FIRST : LONGEST_PAUSE);
        return pause;
    }
}
