#pragma once
// Fibers with stacks of their own: Boost contexts, and the calls that sanitizers need.
#include <boost/context/detail/fcontext.hpp>
#include <cstddef>

namespace weft::emulated {

using FiberMain = void (*)(boost::context::detail::transfer_t from);

struct Fiber {
  char* stack = nullptr;  // end of the stack; null for a thread's own stack
  void* context = nullptr;
  // The sanitizers need these. For a thread's own stack they are known once it has been left.
  const void* bottom = nullptr;
  size_t bytes = 0;
  void *kept = nullptr, *sanitized = nullptr;
};

// Gives the fiber a stack with a guard below it.
void make_fiber(Fiber& fiber, FiberMain main);
// Discards the fiber's stack contents; `main` runs next.
void begin_anew(Fiber& fiber, FiberMain main);
// Switches from the running fiber `from` to `to`; returns when another fiber switches back.
void jump(Fiber& from, Fiber& to);
// A fiber's main calls this first, with the transfer it was given.
void arrived(boost::context::detail::transfer_t from, Fiber& self);

}  // namespace weft::emulated
