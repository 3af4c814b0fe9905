/**
 * Softmax regression in plain TypeScript: no package but polytempo-client.
 *
 * node softmax.js HOST:PORT client-0.token ca.pem
 */
import { addObjective, Client } from "polytempo-client";
const [ROWS, FEATURES, CLASSES] = [300, 4, 3];
const uniform = () => 2 * Math.random() - 1;
const x = Array.from({ length: ROWS }, () => Float32Array.from({ length: FEATURES }, uniform)); // your own data
const y = x.map((row) => (row[0] + row[1] > 0.3 ? 0 : row[2] > row[3] ? 1 : 2));
/** How likely each class is. */
function likely({ weight, bias }, row) {
    const scores = bias.map((b, c) => Math.exp(row.reduce((sum, value, f) => sum + value * weight[c * FEATURES + f], b)));
    const sum = scores.reduce((all, score) => all + score);
    return scores.map((score) => score / sum);
}
/** The mean gradient of the loss over these rows. */
function gradient(tensors, rows) {
    const [weight, bias] = [new Float32Array(CLASSES * FEATURES), new Float32Array(CLASSES)];
    for (const i of rows) {
        likely(tensors, x[i]).forEach((share, c) => {
            const error = (share - (y[i] === c ? 1 : 0)) / rows.length;
            bias[c] += error;
            x[i].forEach((value, f) => (weight[c * FEATURES + f] += error * value));
        });
    }
    return { weight, bias };
}
async function train(task) {
    const hits = x.filter((row, i) => likely(task.tensors, row).reduce((a, p, c, all) => (p > all[a] ? c : a), 0) === y[i]);
    let [tensors, steps] = [task.tensors, 0];
    for (; steps < task.stepsFor(ROWS); steps++) {
        const look = await task.look(tensors); // the server may have sent a newer model, or want what there is
        if (look.stop)
            break;
        tensors = look.tensors;
        const rows = Array.from({ length: task.work.batchSize }, () => Math.floor(Math.random() * ROWS));
        const gradients = gradient(tensors, rows);
        addObjective(task, tensors, gradients);
        for (const [name, numbers] of Object.entries(tensors)) {
            numbers.forEach((_, i) => (numbers[i] -= task.work.lr * gradients[name][i]));
        }
    }
    console.log(`task ${task.number}: accuracy ${(hits.length / ROWS).toFixed(3)}`);
    return { tensors, samples: ROWS, steps, accuracy: hits.length / ROWS };
}
const [servers = "", token = "", ca = ""] = process.argv.slice(2);
const client = new Client({ servers, token, ca });
await client.run(train, 5);
client.close();
