/** A program for `polytempo conform`: it takes part with the Node client, and its training is a few small steps. */
import { setTimeout as sleep } from "node:timers/promises";
import { Client, enrol } from "polytempo-client";
const told = (name) => process.env[`POLYTEMPO_${name}`] ?? "";
/** Every step leads half of the way that is left to the start plus one. */
async function train(task) {
    let [start, moved, steps] = [task.tensors, 0, 0];
    for (; steps < task.stepsFor(10); steps++) {
        const { tensors, refreshed, stop } = await task.look(start);
        if (refreshed)
            start = tensors;
        if (stop)
            break;
        moved += (1 - moved) / 2;
        await sleep(1);
    }
    const trained = Object.entries(start).map(([name, data]) => [name, data.map((value) => value + moved)]);
    return { tensors: Object.fromEntries(trained), samples: 10, steps };
}
const endpoint = {
    servers: told("SERVERS"),
    ca: told("CA"),
    certificate: { cert: told("CERT"), key: told("KEY") },
};
if (told("CODE"))
    await enrol({ ...endpoint, code: told("CODE"), out: told("TOKEN") });
const client = new Client({
    ...endpoint,
    token: told("TOKEN"),
    keep: told("KEEP"),
    upload: told("UPLOAD"),
    download: told("DOWNLOAD") === "fp16" ? "fp16" : "",
});
await client.run(train);
