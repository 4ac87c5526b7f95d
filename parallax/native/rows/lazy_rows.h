// State shared by the ops of one table: the last update of each row, and the scalars of the last updates.
#ifndef PARALLAX_NATIVE_ROWS_LAZY_ROWS_H_
#define PARALLAX_NATIVE_ROWS_LAZY_ROWS_H_

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "interpret.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/util/work_sharder.h"

namespace parallax_rows {

// Looked up by container and name of the table's variable. `mutex` guards all other members, and is locked before the
// variables'.
template <typename T>
class LazyRows : public tensorflow::ResourceBase {
 public:
  LazyRows(std::string text, Program program, int64_t ring, int64_t rows)
      : text_(std::move(text)), code_(Compile(program)), length_(ring), ring_(code_, ring), has_(rows, 0) {}

  std::string DebugString() const override { return absl::StrCat("updates of ", has_.size(), " rows"); }

  tensorflow::mutex* mutex() { return &mutex_; }
  int64_t rows() const { return has_.size(); }
  int64_t states() const { return code_.states; }
  bool current() const { return current_at_ == ring_.last(); }
  bool runs(const std::string& text, int64_t ring) const { return text == text_ && ring == length_; }

  // Rows [first, limit) that miss updates; from here on they count as up to date.
  void TakeRange(int64_t first, int64_t limit, std::vector<Row<T>>* taken) {
    for (int64_t row = first; row < limit; ++row) Take(row, taken);
  }
  void Take(int64_t row, std::vector<Row<T>>* taken) {
    const uint32_t behind = static_cast<uint32_t>(ring_.last()) - has_[row];
    if (behind == 0) return;
    taken->push_back({row, behind, nullptr});
    has_[row] = static_cast<uint32_t>(ring_.last());
  }

  // The rows of a pushed update, and those of the sweep: no row falls further behind than the ring is long.
  std::vector<Row<T>> TakeUpdate(const std::vector<int64_t>& rows, const std::vector<T>& gradients, int64_t width) {
    const int64_t of_row = width * code_.gradients;
    std::vector<Row<T>> taken;
    taken.reserve(rows.size());
    for (size_t place = 0; place < rows.size(); ++place) {
      taken.push_back({rows[place], 0, gradients.data() + place * of_row});
      has_[rows[place]] = static_cast<uint32_t>(ring_.last());
    }
    const int64_t all = has_.size(), share = (all + length_ - 1) / length_;
    const int64_t limit = std::min(all, cursor_ + share);
    TakeRange(cursor_, limit, &taken);
    cursor_ = limit == all ? 0 : limit;
    return taken;
  }

  void Push(const T* scalars) { ring_.Push(scalars); }

  // All rows are read, or their variables are reinitialized.
  void AllCurrent() {
    if (current()) return;
    std::fill(has_.begin(), has_.end(), static_cast<uint32_t>(ring_.last()));
    current_at_ = ring_.last();
  }

  void Bring(tensorflow::OpKernelContext* context, const std::vector<Row<T>>& taken, T* const* states,
             int64_t width) const {
    if (taken.empty()) return;
    const Table<T> table{code_, ring_, states, width};
    const auto bring = [&](int64_t first, int64_t limit) { BringRows(table, taken.data() + first, limit - first); };
    auto threads = *context->device()->tensorflow_cpu_worker_threads();
    const int64_t update = code_.missed.body.size() * (width / 4 + 4);  // approximate cycles
    tensorflow::Shard(threads.num_threads, threads.workers, taken.size(), kUpdates * update, bring);
  }

 private:
  static constexpr int64_t kUpdates = 16;  // assumed number of updates missed per row, to estimate work

  tensorflow::mutex mutex_;
  const std::string text_;
  const Code code_;
  const int64_t length_;
  Ring<T> ring_;
  std::vector<uint32_t> has_;  // by row: the number of its last update, of which the low bits suffice
  int64_t cursor_ = 0, current_at_ = 0;
};

}  // namespace parallax_rows

#endif
