// The process that holds an image: what it is told when it is made, and what it is asked.
#ifndef PARALLAX_NATIVE_FROZEN_CHILD_H_
#define PARALLAX_NATIVE_FROZEN_CHILD_H_

#include <cstddef>
#include <cstdint>

namespace parallax_frozen {

// Addresses from `begin` up to `end`.
struct Span {
  uint64_t begin, end;
};

// Asks for the bytes of `wanted`; pages of `over` are not asked for again, and are given back.
struct Request {
  Span wanted, over;
};

// What the process starts with, in memory that nobody else writes.
struct Start {
  int socket;      // requests come by it, and bytes leave by it
  int parent;      // its end ends this process
  uint64_t spans;  // how many there are
  Span kept[];     // ascending, of whole pages: all memory that is not a file's and not in them is given back
};

// What runs in the process. Between a clone of a process with threads and its end nothing may be used that another
// thread may have left locked: no memory allocation, no function of a library. So there are system calls only.
[[noreturn]] void Serve(const Start& start);

}  // namespace parallax_frozen

#endif
