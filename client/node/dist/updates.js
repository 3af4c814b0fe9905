/** What is handed in: checked, and encoded if that was agreed. */
import { writeBody } from "./bodies.js";
import { encode } from "./encodings.js";
import { NamesError, NotFiniteError, ShapeError } from "./errors.js";
/** Of one client, which adds to each update what the encoding of the last ones left out. */
export class Uploads {
    encoding = "";
    #left = {};
    make(task, result) {
        const trained = checked(task, result.tensors);
        const arrays = [];
        const answers = JSON.stringify({ dict: pairs(result.answers ?? {}, arrays) });
        const extra = Object.fromEntries(arrays.map((data, i) => [`answer/${i}`, { dtype: "F32", shape: [data.length], data }]));
        const encoding = this.encoding;
        const { entries, confirm } = encoding ? this.#encoded(task, trained, encoding) : whole(task, trained);
        return { body: writeBody({ ...entries, ...extra }), encoding, answers: result.answers ? answers : "", confirm };
    }
    #encoded(task, trained, encoding) {
        const places = Object.keys(trained).flatMap((name) => placesOf(task, name));
        const left = (name, i) => this.#left[name]?.[i] ?? 0;
        const difference = Float32Array.from(places, ([name, i]) => trained[name][i] - task.start[name][i] + left(name, i));
        const { entries, arrives } = encode(encoding, difference);
        const confirm = () => {
            places.forEach(([name, i], k) => {
                (this.#left[name] ??= new Float32Array(task.schema.size(name)))[i] = difference[k] - arrives[k];
            });
        };
        return { entries, confirm };
    }
}
/** Where a tensor trains. */
function placesOf(task, name) {
    const mask = task.trains(name);
    const places = [];
    for (let i = 0; i < task.schema.size(name); i++) {
        if (mask === true || (mask && mask[i]))
            places.push([name, i]);
    }
    return places;
}
function whole(task, trained) {
    const entries = Object.entries(trained).map(([name, data]) => [
        name,
        { dtype: "F32", shape: task.schema.shapes.get(name) ?? [], data },
    ]);
    return { entries: Object.fromEntries(entries), confirm: () => undefined };
}
/** The tensors that the task trains, in the model's order. */
function checked(task, tensors) {
    const { names } = task.schema;
    const strange = Object.keys(tensors).find((name) => !names.includes(name));
    if (strange !== undefined)
        throw new NamesError(`${strange} is no tensor of the model: ${names.join(", ")}.`);
    const trained = names.filter((name) => task.trains(name));
    for (const name of trained) {
        const [data, size] = [tensors[name], task.schema.size(name)];
        if (!data)
            throw new NamesError(`${name} is missing; the task trains ${trained.join(", ")}.`);
        if (data.length !== size)
            throw new ShapeError(`${name} has ${data.length} numbers; expected ${size}.`);
        if (!data.every(Number.isFinite)) {
            throw new NotFiniteError(`${name} holds NaN or Inf, and was not sent. Look at the learning rate and the data.`);
        }
    }
    return Object.fromEntries(trained.map((name) => [name, Float32Array.from(tensors[name])]));
}
function pairs(answers, arrays) {
    return Object.entries(answers).map(([key, answer]) => [key, packed(answer, arrays)]);
}
/** An answer as JSON; arrays of numbers go to the body. */
function packed(answer, arrays) {
    if (answer instanceof Float32Array) {
        return { array: arrays.push(answer) - 1, type: "torch.float32", shape: [answer.length] };
    }
    if (Array.isArray(answer))
        return answer.map((one) => packed(one, arrays));
    return answer !== null && typeof answer === "object" ? { dict: pairs(answer, arrays) } : answer;
}
