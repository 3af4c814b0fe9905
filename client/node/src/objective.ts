/** What a method adds to the local loss. */

import type { Tensors } from "./bodies.js";
import type { Task } from "./tasks.js";

/** Add the gradient of the task's objective at `tensors` to `gradients`, in place. */
export function addObjective(task: Task, tensors: Tensors, gradients: Tensors): void {
  const linear = task.vectors("linear/");
  const anchor = task.vectors("anchor/") ?? task.start;
  const names = task.schema.names.filter((name) => !task.schema.buffers.has(name));
  const { proximal, cosine, l2 } = task.objective ?? { proximal: 0, cosine: 0, l2: 0 };
  const sum = (term: (w: number, a: number) => number): number =>
    names.reduce((all, name) => tensors[name]!.reduce((part, w, i) => part + term(w, anchor[name]![i]!), all), 0);
  const length = cosine ? Math.sqrt(sum((w) => w * w)) : 0;
  const lengths = cosine ? length * Math.sqrt(sum((_, a) => a * a)) : 0;
  const product = lengths ? sum((w, a) => w * a) : 0;
  const distance = l2 ? Math.sqrt(sum((w, a) => (w - a) ** 2)) : 0;
  for (const name of names) {
    gradients[name]?.forEach((_, i, gradient) => {
      const [w, a] = [tensors[name]![i]!, anchor[name]![i]!];
      gradient[i]! += proximal * (w - a) + (linear?.[name]![i] ?? 0);
      if (lengths) gradient[i]! -= (cosine * (a - (w * product) / length ** 2)) / lengths;
      if (distance) gradient[i]! += (l2 * (w - a)) / distance;
    });
  }
}
