// How the members of a team put values together, element by element: by which method, in which order.
#ifndef PARALLAX_NATIVE_SUMS_H_
#define PARALLAX_NATIVE_SUMS_H_

#include <mpi.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "teams.h"
#include "window.h"

namespace parallax {

// As in parallax/plans/sum_methods.py.
enum SumMethod {
  kDoubling,  // recursive doubling: all of it to the member at distance 1, 2, 4, ...
  kRing,      // around a ring, in as many pieces as members, twice
  kHalving,   // Rabenseifner's: half, a quarter, ... to the member at distance 1, 2, 4, ..., and the same way back
  kLeader,    // within hosts in shared memory, then among the first of each host by recursive doubling
  kSlices,    // within hosts in shared memory, a slice by each member, which goes by what sends fewest bytes out of hosts
};

// Up to how many bytes a message has which method.
struct SumRule {
  long long bytes;
  SumMethod method;
};

// An element type with what puts two of them together.
struct Elements {
  long long size;
  void (*combine)(void* into, const void* from, long long count);
};

// How a team puts together what one node of the graph has. Sums have one order, the same in every run.
class Sums {
 public:
  // Puts the elements of a message from `begin` on, `count` of them, into memory.
  using Pack = std::function<void(long long begin, long long count, char* to)>;

  // All members must make it.
  //
  // Args:
  //   comm: of the team, used for nothing else.
  //   host: where this member is.
  //   part_bytes: of a message that are in shared memory at a time; 0 for no shared memory.
  //   rules: by size; the last one has all that is longer.
  Sums(MPI_Comm comm, int host, long long part_bytes, std::vector<SumRule> rules);

  // Puts a message together, which is then in `values` on all members.
  void Reduce(const Pack& pack, char* values, long long count, const Elements& elements);

  // Why members of a host share no memory; empty where they do, or need not.
  const std::string& why_not_shared() const { return why_; }

 private:
  SumMethod MethodOf(long long bytes) const;
  void ReduceInHosts(const Pack& pack, char* values, long long count, const Elements& elements, bool in_slices);
  void ReduceAcross(char* values, long long count, const Elements& elements, bool in_slices);

  void FewestBytes(const Members& team, char* values, long long count, const Elements& elements);
  void Double(const Members& team, char* values, long long count, const Elements& elements);
  void Ring(const Members& team, char* values, long long count, const Elements& elements);
  void Halve(const Members& team, char* values, long long count, const Elements& elements);

  char* Scratch(long long bytes);

  Members all_, in_host_, across_;  // the last of those with this member's place on their hosts
  int slices_ = 1;  // members of the host that has fewest
  long long part_bytes_ = 0;
  std::vector<SumRule> rules_;
  std::unique_ptr<Window> window_;
  bool is_host_first_ = false;
  std::string why_;
  std::vector<char> scratch_;
};

}  // namespace parallax

#endif  // PARALLAX_NATIVE_SUMS_H_
