// Runs a grid on one host thread: blocks one after another, the threads of a block as fibers.
//
// A fiber runs until it waits or ends, so an order of threads is a schedule, and each schedule is reproducible: a
// missing barrier shows as a difference between the first thread first and the last thread first. When no fiber can
// run, the waits that are complete are released; if there is none, the kernel would hang or is undefined on a device
// (a divergent barrier, a lane that has exited), and the launch ends with an error that names two threads.
// Shared memory is filled with 0xff before each block, so that nobody reads a zero or another block's values by luck.

#include "shim.h"

#include <cstdarg>
#include <cstdio>
#include <link.h>
#include <mutex>
#include <ucontext.h>
#include <vector>

constexpr size_t DYNAMIC = 227 * 1024;  // the most that a block may have on today's devices
constexpr size_t STACK = 64 * 1024;
constexpr unsigned char POISON = 0xff;

alignas(128) thread_local unsigned char dynamic_shared[DYNAMIC];

namespace {

struct Fiber {
    shim::Self self;
    unsigned linear;
    ucontext_t context;
    bool exited = false;
    const char* op = nullptr;  // what it waits at; null if it can run
    int line = 0;
    unsigned mask = 0;         // 0 for the whole block
    uint64_t value = 0;
    uint64_t values[32];       // of the exchange that released it

    bool waits_with(const Fiber& other) const { return op == other.op && line == other.line && mask == other.mask; }
};

std::mutex one_grid;
ucontext_t scheduler;
std::vector<Fiber> fibers;
std::vector<char> stacks;
Fiber* running;
void (*kernel)(void*);
void* arguments;
char* message;
size_t message_size;
bool failed;

void report(const Fiber& fiber, const char* format, ...) {
    const uint3 block = fiber.self.block, thread = fiber.self.thread;
    const int start = snprintf(message, message_size, "block (%u, %u, %u), thread (%u, %u, %u) ", block.x, block.y,
                               block.z, thread.x, thread.y, thread.z);
    va_list parts;
    va_start(parts, format);
    vsnprintf(message + start, message_size - start, format, parts);
    va_end(parts);
    failed = true;
}

void enter() {
    kernel(arguments);
    running->exited = true;
    swapcontext(&running->context, &scheduler);
}

void wait(const char* op, int line, unsigned mask, uint64_t value) {
    Fiber& fiber = *running;
    fiber.op = op;
    fiber.line = line;
    fiber.mask = mask;
    fiber.value = value;
    swapcontext(&fiber.context, &scheduler);
}

Fiber& lane_of(const Fiber& fiber, unsigned lane) { return fibers[fiber.linear - fiber.self.lane + lane]; }

// The first thread that `fiber` waits for and that is not there, if any.
const Fiber* absent(const Fiber& fiber) {
    if (fiber.mask == 0) {
        for (const Fiber& other : fibers) {
            if (!other.waits_with(fiber)) return &other;
        }
        return nullptr;
    }
    for (unsigned lane = 0; lane < 32; lane++) {
        if (fiber.mask >> lane & 1 && !lane_of(fiber, lane).waits_with(fiber)) return &lane_of(fiber, lane);
    }
    return nullptr;
}

// Lets all threads go whose wait is complete; false if there is none.
bool release() {
    std::vector<Fiber*> ready;
    for (Fiber& fiber : fibers) {
        if (fiber.op != nullptr && absent(fiber) == nullptr) ready.push_back(&fiber);
    }
    for (Fiber* fiber : ready) {
        for (unsigned lane = 0; lane < 32; lane++) {
            if (fiber->mask >> lane & 1) fiber->values[lane] = lane_of(*fiber, lane).value;
        }
    }
    for (Fiber* fiber : ready) fiber->op = nullptr;
    return !ready.empty();
}

// Says why nothing can run: the first thread that waits, and for whom.
void explain() {
    const Fiber* first = &fibers[0];
    while (first->op == nullptr) first++;
    const Fiber* other = absent(*first);
    const uint3 thread = other->self.thread;
    if (other->exited) {
        return report(*first, "waits at %s, line %d, for thread (%u, %u, %u), which has exited", first->op,
                      first->line, thread.x, thread.y, thread.z);
    }
    report(*first, "waits at %s, line %d, for thread (%u, %u, %u), which waits at %s, line %d%s", first->op,
           first->line, thread.x, thread.y, thread.z, other->op, other->line,
           first->op == other->op && first->line == other->line ? ", with another mask" : "");
}

// Fills this library's thread-local memory, all of which is shared memory of kernels.
int poison(dl_phdr_info* object, size_t, void*) {
    bool ours = false;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr)& part = object->dlpi_phdr[i];
        const uintptr_t offset = reinterpret_cast<uintptr_t>(&poison) - object->dlpi_addr;
        ours |= part.p_type == PT_LOAD && offset >= part.p_vaddr && offset < part.p_vaddr + part.p_memsz;
    }
    for (int i = 0; ours && i < object->dlpi_phnum; i++) {
        const ElfW(Phdr)& part = object->dlpi_phdr[i];
        if (part.p_type == PT_TLS) memset(object->dlpi_tls_data, POISON, part.p_memsz);
    }
    return ours;
}

void start_block(uint3 block, dim3 block_dim, dim3 grid_dim) {
    dynamic_shared[0] = POISON;  // a first touch gives this thread its thread-local memory
    dl_iterate_phdr(poison, nullptr);
    for (unsigned linear = 0; linear < fibers.size(); linear++) {
        const unsigned x = linear % block_dim.x, y = linear / block_dim.x % block_dim.y;
        Fiber& fiber = fibers[linear] = Fiber{};
        fiber.self = {{x, y, linear / block_dim.x / block_dim.y}, block, block_dim, grid_dim, linear % 32};
        fiber.linear = linear;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = &stacks[linear * STACK];
        fiber.context.uc_stack.ss_size = STACK;
        makecontext(&fiber.context, enter, 0);
    }
}

void run_block(bool last_first) {
    for (;;) {
        bool done = true;
        for (size_t i = 0; i < fibers.size(); i++) {
            Fiber& fiber = fibers[last_first ? fibers.size() - 1 - i : i];
            if (!fiber.exited && fiber.op == nullptr) {
                running = &fiber;
                swapcontext(&scheduler, &fiber.context);
                if (failed) return;
            }
            done &= fiber.exited;
        }
        if (done) return;
        if (!release()) return explain();
    }
}

void check_dynamic(size_t bytes) {
    for (size_t i = bytes; i < DYNAMIC; i++) {
        if (dynamic_shared[i] != POISON) {
            return report(fibers[0], "or another of its block wrote byte %zu of %zu bytes of dynamic shared memory", i,
                          bytes);
        }
    }
}

}  // namespace

const shim::Self& shim::self() { return running->self; }

void shim::barrier(const char* op, int line) { wait(op, line, 0, 0); }

const uint64_t* shim::exchange(const char* op, int line, unsigned mask, uint64_t value) {
    const Fiber& fiber = *running;
    const size_t lanes = std::min<size_t>(32, fibers.size() - (fiber.linear - fiber.self.lane));
    if (!(mask >> fiber.self.lane & 1)) fail(op, line, "is not in its own mask: lane", fiber.self.lane);
    if (uint64_t(mask) >> lanes) fail(op, line, "names lanes of a warp that ends before lane", lanes);
    wait(op, line, mask, value);
    return fiber.values;
}

void shim::fail(const char* op, int line, const char* what, unsigned number) {
    report(*running, "at %s, line %d, %s %u", op, line, what, number);
    swapcontext(&running->context, &scheduler);
    __builtin_unreachable();
}

// Calls `thread(context)` on each thread of the grid, last thread and last block first if asked. False, with a
// message of at most `size` bytes in `text`, if the kernel did what a device leaves undefined.
extern "C" bool shim_launch(void (*thread)(void*), void* context, dim3 grid, dim3 block, size_t shared,
                            bool last_first, char* text, size_t size) {
    const std::lock_guard<std::mutex> lock(one_grid);
    kernel = thread;
    arguments = context;
    message = text;
    message_size = size;
    failed = false;
    fibers.resize(size_t(block.x) * block.y * block.z);
    stacks.resize(fibers.size() * STACK);
    const unsigned blocks = grid.x * grid.y * grid.z;
    for (unsigned i = 0; i < blocks && !failed; i++) {
        const unsigned linear = last_first ? blocks - 1 - i : i;
        const uint3 at = {linear % grid.x, linear / grid.x % grid.y, linear / grid.x / grid.y};
        start_block(at, block, grid);
        run_block(last_first);
        if (!failed) check_dynamic(shared);
    }
    return !failed;
}
