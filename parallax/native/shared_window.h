// Memory that the processes of a host share, in which they reduce messages.
#ifndef PARALLAX_NATIVE_WINDOW_H_
#define PARALLAX_NATIVE_WINDOW_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "teams.h"

namespace parallax {

// A buffer for each member's part, one for the result, and two counters by which members wait for each other.
//
// The memory is an anonymous file (memfd), which the kernel frees when the last process ends, however it ends, and to
// which no limit of /dev/shm applies. The other members open it through /proc, by process and descriptor.
class Window {
 public:
  // A collective operation of the members of a host; nullptr and `why` if this process cannot map it.
  static Window* Make(const Members& host, long long part_bytes, std::string* why);
  ~Window();

  long long part_bytes() const { return part_bytes_; }
  char* part(int place) const { return parts_ + place * part_bytes_; }
  char* result() const { return part(members_); }

  // Each member signals the end of a phase, and waits for all others.
  void CountPacked() { Count(&head_->packed, packed_ + members_); }
  void AwaitPacked() { Await(head_->packed, packed_ += members_); }
  void CountSummed(int of) { Count(&head_->summed, summed_ + of); }
  void AwaitSummed(int of) { Await(head_->summed, summed_ += of); }

  // Closes the descriptor, after all members have mapped the memory.
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
  uint32_t packed_ = 0, summed_ = 0;  // the values of the counters that were waited for last
};

}  // namespace parallax

#endif  // PARALLAX_NATIVE_WINDOW_H_
