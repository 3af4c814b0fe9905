/** A one-time code becomes a client's token. */
import { type Endpoint } from "./transport.js";
export interface Enrolee {
    client: number;
    /** When the token does; undefined: never. */
    expires?: Date;
}
/**
 * Make a token, let the server take it for the code, and keep it in the file `out`. Until the server has said yes it
 * lies in OUT.part, so that a second try after a broken connection is the same enrolment.
 */
export declare function enrol(endpoint: Endpoint & {
    code: string;
    out: string;
}): Promise<Enrolee>;
