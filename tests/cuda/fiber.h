#pragma once
// Fibers on stacks of their own: contexts of Boost's, and what sanitizers want to know of them.
#include <boost/context/detail/fcontext.hpp>
#include <cstddef>

namespace weft::emulated {

using FiberMain = void (*)(boost::context::detail::transfer_t from);

struct Fiber {
  char* stack = nullptr;  // its end; null: a thread's own
  void* context = nullptr;
  // For sanitizers; of a thread's own stack known once it was left.
  const void* bottom = nullptr;
  size_t bytes = 0;
  void *kept = nullptr, *sanitized = nullptr;
};

// Gives the fiber a stack with a guard below it.
void make_fiber(Fiber& fiber, FiberMain main);
// What stood on its stack is forgotten, `main` runs next.
void begin_anew(Fiber& fiber, FiberMain main);
// Leaves `from`, which runs, for `to`; returns when somebody jumps back.
void jump(Fiber& from, Fiber& to);
// The first thing that a fiber's main does, with what it was given.
void arrived(boost::context::detail::transfer_t from, Fiber& self);

}  // namespace weft::emulated
