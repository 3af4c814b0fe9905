/** What goes wrong, as exceptions. A message says what was wrong, what was expected, and what to do. */

/** Everything that a client raises on purpose. */
export class PolytempoError extends Error {
  override get name(): string {
    return this.constructor.name;
  }
}

/** A result that does not fit its task. Nothing was sent, and the task is still open. */
export class UpdateError extends PolytempoError {}
/** A tensor is missing, or is none of the model's. */
export class NamesError extends UpdateError {}
/** A tensor has another size than the model's. */
export class ShapeError extends UpdateError {}
/** A tensor holds NaN or Inf. */
export class NotFiniteError extends UpdateError {}

/** The server does not take what was sent. `isVoid`: it came too late. `hasFailed`: the server's method failed. */
export class RefusedError extends PolytempoError {
  constructor(
    reason: string,
    readonly isVoid = false,
    readonly hasFailed = false,
  ) {
    super(reason);
  }
}

/** The server does not let this client in. */
export class AccessError extends PolytempoError {}
/** The token is missing, or no client of the server has it, or it has expired. */
export class TokenError extends AccessError {}
/** A certificate is missing, expired, signed by somebody else, or for another host name. */
export class CertificateError extends AccessError {}
/** Another program uses this client's token, and takes its session again and again. */
export class DisplacedError extends AccessError {}

/** The server speaks a protocol that this version does not know. */
export class VersionError extends PolytempoError {}
/** No server answered for as long as was asked for. */
export class UnreachableError extends PolytempoError {}
/** A file of this client's cannot be written, for example on a full disk. */
export class KeepError extends PolytempoError {}
/** What came is no message of the protocol. The client connects anew. */
export class WireError extends PolytempoError {}
