/** What a method adds to the local loss. */
import type { Tensors } from "./bodies.js";
import type { Task } from "./tasks.js";
/** Add the gradient of the task's objective at `tensors` to `gradients`, in place. */
export declare function addObjective(task: Task, tensors: Tensors, gradients: Tensors): void;
