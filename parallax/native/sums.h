// Element-wise reductions among the members of a team, by several methods, each in one fixed order.
#ifndef PARALLAX_NATIVE_SUMS_H_
#define PARALLAX_NATIVE_SUMS_H_

#include <mpi.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "teams.h"
#include "shared_window.h"

namespace parallax {

// As in parallax/plans/sum_methods.py.
enum SumMethod {
  kDoubling,  // recursive doubling: the whole message to the member at distance 1, 2, 4, ...
  kRing,      // a ring reduce-scatter and all-gather, with a piece per member
  kHalving,   // Rabenseifner's: recursive halving, then recursive doubling
  kLeader,    // within hosts in shared memory, then among the hosts' first members by recursive doubling
  kSlices,    // within hosts in shared memory, then each slice across hosts, by the method with the fewest bytes
};

// The method for messages up to a size.
struct SumRule {
  long long bytes;
  SumMethod method;
};

// An element type and its reduction.
struct Elements {
  long long size;
  void (*combine)(void* into, const void* from, long long count);
};

// The reductions of one node of the graph among a team. Their order of operations is the same in every run.
class Sums {
 public:
  // Copies `count` elements of a message, from `begin` on, to memory.
  using Pack = std::function<void(long long begin, long long count, char* to)>;

  // A collective operation of the team.
  //
  // Args:
  //   comm: the communicator of the team, for exclusive use.
  //   host: the host of this member.
  //   part_bytes: the part of a message that is in shared memory at a time; 0 for no shared memory.
  //   rules: in ascending order of size; the last one applies to all longer messages.
  Sums(MPI_Comm comm, int host, long long part_bytes, std::vector<SumRule> rules);

  // Reduces a message; the result is in `values` on all members.
  void Reduce(const Pack& pack, char* values, long long count, const Elements& elements);

  // The reason why members of a host share no memory; empty if they do, or need not.
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

  Members all_, in_host_, across_;  // the last has the members of the same local rank
  int slices_ = 1;  // the number of members on the host with the fewest
  long long part_bytes_ = 0;
  std::vector<SumRule> rules_;
  std::unique_ptr<Window> window_;
  bool is_host_first_ = false;
  std::string why_;
  std::vector<char> scratch_;
};

}  // namespace parallax

#endif  // PARALLAX_NATIVE_SUMS_H_
