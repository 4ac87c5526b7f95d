#include "sums.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <utility>

namespace parallax {

namespace {

constexpr int kSumTag = 0;
constexpr long long kMostAtOnce = 1 << 27;  // elements; MPI counts bytes in int
constexpr long long kLine = 64;             // bytes that processors share at a time
constexpr long long kBlock = 1 << 13;       // bytes of a result that stay in the processor's cache
constexpr long long kRingFrom = 1 << 20;    // bytes; see FewestBytes

std::atomic<long long> windows_made{0}, scratch_made{0}, bytes_packed{0}, bytes_read{0};

void Swap(const Members& team, int to, const char* sent, long long sent_bytes, int from, char* received,
          long long received_bytes) {
  MPI_Sendrecv(sent, static_cast<int>(sent_bytes), MPI_BYTE, team.ranks[to], kSumTag, received,
               static_cast<int>(received_bytes), MPI_BYTE, team.ranks[from], kSumTag, team.comm, MPI_STATUS_IGNORE);
}

void Give(const Members& team, int to, const char* sent, long long bytes) {
  MPI_Send(sent, static_cast<int>(bytes), MPI_BYTE, team.ranks[to], kSumTag, team.comm);
}

void Take(const Members& team, int from, char* received, long long bytes) {
  MPI_Recv(received, static_cast<int>(bytes), MPI_BYTE, team.ranks[from], kSumTag, team.comm, MPI_STATUS_IGNORE);
}

// The first element of piece `number`.
long long Start(long long count, int pieces, int number) { return count * number / pieces; }

// The members of a team beyond the largest power of two: each sends its message to a neighbor and gets the result.
class Folded {
 public:
  Folded(const Members& team, char* values, long long count, const Elements& elements, char* scratch)
      : team_(team), values_(values), bytes_(count * elements.size) {
    while (2 * members_ <= team.size()) members_ *= 2;
    extra_ = team.size() - members_;
    if (team.place >= 2 * extra_) {
      place_ = team.place - extra_;
    } else if (team.place % 2 == 0) {
      Give(team, team.place + 1, values, bytes_);
    } else {
      Take(team, team.place - 1, scratch, bytes_);
      elements.combine(values, scratch, count);
      place_ = team.place / 2;
    }
  }

  void Finish() {
    if (team_.place >= 2 * extra_) return;
    if (team_.place % 2) {
      Give(team_, team_.place - 1, values_, bytes_);
    } else {
      Take(team_, team_.place + 1, values_, bytes_);
    }
  }

  bool is_in() const { return place_ >= 0; }
  int size() const { return members_; }
  int place() const { return place_; }
  int PlaceInTeam(int place) const { return place < extra_ ? 2 * place + 1 : place + extra_; }

 private:
  const Members& team_;
  char* const values_;
  const long long bytes_;
  int members_ = 1, extra_ = 0, place_ = -1;
};

bool IsPowerOfTwo(int number) { return (number & (number - 1)) == 0; }

}  // namespace

Sums::Sums(MPI_Comm comm, int host, long long part_bytes, std::vector<SumRule> rules) : rules_(std::move(rules)) {
  int size = 0;
  MPI_Comm_rank(comm, &all_.place);
  MPI_Comm_size(comm, &size);
  std::vector<int> hosts(size);
  MPI_Allgather(&host, 1, MPI_INT, hosts.data(), 1, MPI_INT, comm);
  std::map<int, std::vector<int>> by_host;
  for (int rank = 0; rank < size; ++rank) {
    all_.ranks.push_back(rank);
    by_host[hosts[rank]].push_back(rank);
  }
  in_host_.ranks = by_host[host];
  in_host_.place = std::find(in_host_.ranks.begin(), in_host_.ranks.end(), all_.place) - in_host_.ranks.begin();
  slices_ = size;
  for (const auto& one : by_host) slices_ = std::min(slices_, static_cast<int>(one.second.size()));
  for (const auto& one : by_host) {
    if (in_host_.place >= slices_) break;
    if (one.first == host) across_.place = across_.size();
    across_.ranks.push_back(one.second[in_host_.place]);
  }
  all_.comm = in_host_.comm = across_.comm = comm;
  if (part_bytes == 0 || by_host.size() == static_cast<size_t>(size)) return;
  part_bytes_ = (part_bytes + kLine - 1) / kLine * kLine;
  int has_memory = 1;
  if (in_host_.size() > 1) {
    window_.reset(Window::Make(in_host_, part_bytes_, &why_));
    has_memory = window_ != nullptr;
  }
  MPI_Allreduce(MPI_IN_PLACE, &has_memory, 1, MPI_INT, MPI_MIN, comm);
  is_host_first_ = has_memory;
  if (!has_memory) window_.reset();
  if (window_ == nullptr) return;
  window_->Close();
  ++windows_made;
}

void Sums::Reduce(const Pack& pack, char* values, long long count, const Elements& elements) {
  const SumMethod method = MethodOf(count * elements.size);
  if (is_host_first_ && method >= kLeader) return ReduceInHosts(pack, values, count, elements, method == kSlices);
  pack(0, count, values);
  for (long long begin = 0; begin < count; begin += kMostAtOnce) {
    const long long some = std::min(count - begin, kMostAtOnce);
    char* at = values + begin * elements.size;
    if (method == kDoubling || method == kLeader) {
      Double(all_, at, some, elements);
    } else if (method == kRing) {
      Ring(all_, at, some, elements);
    } else if (method == kHalving) {
      Halve(all_, at, some, elements);
    } else {
      FewestBytes(all_, at, some, elements);
    }
  }
}

SumMethod Sums::MethodOf(long long bytes) const {
  for (const SumRule& rule : rules_) {
    if (bytes <= rule.bytes) return rule.method;
  }
  return rules_.empty() ? kRing : rules_.back().method;
}

// Members copy their parts to the window. When all parts are present, each of some members sums a slice of them, in the
// order of the members, and reduces it with the members of other hosts that have the same slice; then all copy the
// result. A part is overwritten only after its member has copied the previous result, and a result only after all parts
// were written.
void Sums::ReduceInHosts(const Pack& pack, char* values, long long count, const Elements& elements, bool in_slices) {
  const int slices = in_slices ? slices_ : 1;
  const long long at_once = part_bytes_ / elements.size, size = elements.size;
  for (long long begin = 0; begin < count; begin += at_once) {
    const long long some = std::min(count - begin, at_once);
    const int place = in_host_.place;
    const long long first = place < slices ? Start(some, slices, place) : 0;
    const long long of_slice = place < slices ? Start(some, slices, place + 1) - first : 0;
    char* const target = values + begin * size;
    if (window_ == nullptr) {  // alone on its host, and so there is one slice
      pack(begin, some, target);
      ReduceAcross(target, some, elements, in_slices);
      continue;
    }
    pack(begin, some, window_->part(place));
    bytes_packed += some * size;
    window_->CountPacked();
    window_->AwaitPacked();
    if (place < slices) {
      char* const result = window_->result();
      const long long end = (first + of_slice) * size, block = kBlock / size * size;
      for (long long at = first * size; at < end; at += block) {
        const long long bytes = std::min(end - at, block);
        std::memcpy(result + at, window_->part(0) + at, bytes);
        for (int one = 1; one < in_host_.size(); ++one) {
          elements.combine(result + at, window_->part(one) + at, bytes / size);
        }
      }
      ReduceAcross(result + first * size, of_slice, elements, in_slices);
      window_->CountSummed(slices);
    }
    window_->AwaitSummed(slices);
    std::memcpy(target, window_->result(), some * size);
    bytes_read += some * size;
  }
}

void Sums::ReduceAcross(char* values, long long count, const Elements& elements, bool in_slices) {
  if (in_slices) {
    FewestBytes(across_, values, count, elements);
  } else {
    Double(across_, values, count, elements);
  }
}

// Reduces with the fewest bytes, and then the fewest rounds, except that long messages use a ring: on four hosts with
// links of 1 Gbit/s, steps that reduce 5 MB take 106 to 115 ms by a ring, and 118 to 122 ms by halving.
void Sums::FewestBytes(const Members& team, char* values, long long count, const Elements& elements) {
  if (team.size() == 2 && count * elements.size <= kRingFrom) {
    Double(team, values, count, elements);
  } else if (IsPowerOfTwo(team.size()) && count * elements.size <= kRingFrom) {
    Halve(team, values, count, elements);
  } else {
    Ring(team, values, count, elements);
  }
}

void Sums::Double(const Members& team, char* values, long long count, const Elements& elements) {
  if (team.size() < 2 || count == 0) return;
  const long long bytes = count * elements.size;
  char* const scratch = Scratch(bytes);
  Folded folded(team, values, count, elements, scratch);
  for (int distance = 1; folded.is_in() && distance < folded.size(); distance *= 2) {
    const int other = folded.PlaceInTeam(folded.place() ^ distance);
    Swap(team, other, values, bytes, other, scratch, bytes);
    elements.combine(values, scratch, count);
  }
  folded.Finish();
}

void Sums::Ring(const Members& team, char* values, long long count, const Elements& elements) {
  const int members = team.size(), next = (team.place + 1) % members, last = (team.place + members - 1) % members;
  if (members < 2 || count == 0) return;
  char* const scratch = Scratch((count + members - 1) / members * elements.size);
  const auto piece = [&](int number, long long* bytes) {
    number = (number + 2 * members) % members;
    const long long begin = Start(count, members, number);
    *bytes = (Start(count, members, number + 1) - begin) * elements.size;
    return values + begin * elements.size;
  };
  for (int turn = 0; turn < 2 * (members - 1); ++turn) {
    const bool is_adding = turn < members - 1;
    long long sent_bytes = 0, received_bytes = 0;
    const char* sent = piece(team.place - turn, &sent_bytes);
    char* received = piece(team.place - turn - 1, &received_bytes);
    Swap(team, next, sent, sent_bytes, last, is_adding ? scratch : received, received_bytes);
    if (is_adding) elements.combine(received, scratch, received_bytes / elements.size);
  }
}

void Sums::Halve(const Members& team, char* values, long long count, const Elements& elements) {
  if (team.size() < 2 || count == 0) return;
  const long long size = elements.size;
  char* const scratch = Scratch(count * size);
  Folded folded(team, values, count, elements, scratch);
  struct Step {
    int other;
    long long begin, middle, end;
    bool is_upper;
  };
  Step steps[32];
  int number = 0;
  long long begin = 0, end = count;
  for (int distance = 1; folded.is_in() && distance < folded.size(); distance *= 2) {
    const long long middle = begin + (end - begin) / 2;
    const bool is_upper = folded.place() & distance;
    const int other = folded.PlaceInTeam(folded.place() ^ distance);
    steps[number++] = {other, begin, middle, end, is_upper};
    const long long given = is_upper ? begin : middle, given_end = is_upper ? middle : end;
    (is_upper ? begin : end) = middle;
    Swap(team, other, values + given * size, (given_end - given) * size, other, scratch, (end - begin) * size);
    elements.combine(values + begin * size, scratch, end - begin);
  }
  while (number > 0) {
    const Step* const step = &steps[--number];
    const long long taken = step->is_upper ? step->begin : step->middle;
    const long long taken_end = step->is_upper ? step->middle : step->end;
    const long long given = step->is_upper ? step->middle : step->begin;
    const long long given_end = step->is_upper ? step->end : step->middle;
    Swap(team, step->other, values + given * size, (given_end - given) * size, step->other, values + taken * size,
         (taken_end - taken) * size);
  }
  folded.Finish();
}

char* Sums::Scratch(long long bytes) {
  if (static_cast<long long>(scratch_.size()) < bytes) {
    scratch_.resize(bytes);
    ++scratch_made;
  }
  return scratch_.data();
}

}  // namespace parallax

// Statistics of this process: allocations of windows and scratch memory, bytes written to windows and read from them.
extern "C" void parallax_sum_counts(long long* counts) {
  counts[0] = parallax::windows_made;
  counts[1] = parallax::scratch_made;
  counts[2] = parallax::bytes_packed;
  counts[3] = parallax::bytes_read;
}
