/** Which server to try next, after which pause, and when to give up. */
import { type PolytempoError } from "./errors.js";
import { type End } from "./transport.js";
export declare class Search {
    #private;
    private readonly addresses;
    private readonly giveUpAfter?;
    /** `giveUpAfter`: seconds without a session; undefined: never. */
    constructor(addresses: readonly string[], giveUpAfter?: number | undefined);
    get address(): string;
    get isOneOfSeveral(): boolean;
    noteSession(): void;
    noteAnswer(): void;
    noteDisplaced(): void;
    /** What to give up with after this end; undefined to try again. */
    hopeless(end: End, greeted: boolean): PolytempoError | undefined;
    /** Go on to the next address: how long to wait before. */
    pause(end: End): number;
}
