// A kernel on a CPU: one block after the other. KERNEL is its name, SOURCE its file.
#include SOURCE

static const Arguments* arguments;

static void run_thread() {
  KERNEL(*arguments);
  wait_for_copies();
  fibers[threadIdx.x].is_done = true;
  go_to_next();
}

extern "C" void run(const void* given, unsigned blocks, unsigned threads) {
  arguments = (const Arguments*)given;
  gridDim.x = blocks;
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
    memset(memory, 0xff, sizeof(memory));  // NaN
    memset(barriers, 0, sizeof(barriers));
    fibers.clear();
    fibers.resize(threads);
    for (Fiber& fiber : fibers) {
      fiber.stack.resize(1 << 16);
      getcontext(&fiber.state);
      fiber.state.uc_stack.ss_sp = fiber.stack.data();
      fiber.state.uc_stack.ss_size = fiber.stack.size();
      fiber.state.uc_link = &outside;
      makecontext(&fiber.state, run_thread, 0);
    }
    threadIdx.x = 0;
    swapcontext(&outside, &fibers[0].state);
  }
}
