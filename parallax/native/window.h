// Memory that the processes of a host share, in which they put together what each has a part of.
#ifndef PARALLAX_NATIVE_WINDOW_H_
#define PARALLAX_NATIVE_WINDOW_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "teams.h"

namespace parallax {

// A place for each member's part, one for the result, and two counts by which members wait for each other.
//
// It lies in a file of memory without a name, of which nothing is left when the last process has ended, however it ends,
// and which no limit of /dev/shm concerns. The others open it by the process and the descriptor that have it.
class Window {
 public:
  // Members of one host must make it together; nullptr where this process cannot have it, and `why`.
  static Window* Make(const Members& host, long long part_bytes, std::string* why);
  ~Window();

  long long part_bytes() const { return part_bytes_; }
  char* part(int place) const { return parts_ + place * part_bytes_; }
  char* result() const { return part(members_); }

  // Members count what they have done, and wait until so many have.
  void CountPacked() { Count(&head_->packed, packed_ + members_); }
  void AwaitPacked() { Await(head_->packed, packed_ += members_); }
  void CountSummed(int of) { Count(&head_->summed, summed_ + of); }
  void AwaitSummed(int of) { Await(head_->summed, summed_ += of); }

  // No more is mapped by others: the descriptor is not needed.
  void Close();

 private:
  using Counter = std::atomic<uint32_t>;

  struct Head {
    uint64_t token;
    alignas(64) Counter packed;
    alignas(64) Counter summed;
  };

  Window(char* memory, long long bytes, int members, long long part_bytes, int descriptor);

  static void Count(Counter* count, uint32_t last);
  static void Await(Counter& count, uint32_t last);

  Head* const head_;
  char* const parts_;
  const long long bytes_;
  const int members_;
  const long long part_bytes_;
  int descriptor_;
  uint32_t packed_ = 0, summed_ = 0;  // what the counts have been waited for to be
};

}  // namespace parallax

#endif  // PARALLAX_NATIVE_WINDOW_H_
