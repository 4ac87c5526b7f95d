// Prepares a worker's lookups for sending: checks ids, merges equal ones, orders them by destination, and converts them
// to the owners' row numbers.
//
// One op replaces about thirty of TensorFlow's: steps are short, and the overhead of so many small ops exceeds their
// work.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "distinct.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

constexpr int kShown = 5;  // ids in an error

class LegOp : public OpKernel {
 public:
  explicit LegOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("tables", &tables_));
    OP_REQUIRES_OK(context, context->GetAttr("rows", &rows_));
    OP_REQUIRES_OK(context, context->GetAttr("offsets", &offsets_));
    OP_REQUIRES_OK(context, context->GetAttr("from_end", &from_end_));
    from_end_.resize(rows_.size(), false);
    OP_REQUIRES_OK(context, context->GetAttr("destinations", &destinations_));
    OP_REQUIRES_OK(context, context->GetAttr("count", &count_));
    OP_REQUIRES_OK(context, context->GetAttr("to_owners", &to_owners_));
    std::vector<int> shares(count_, 0);
    for (int destination : destinations_) {
      OP_REQUIRES(context, 0 <= destination && destination < count_,
                  absl::InvalidArgumentError("A destination must be below the count of them."));
      places_.push_back(shares[destination]++);
    }
    for (int destination : destinations_) shares_.push_back(shares[destination]);
  }

  void Compute(OpKernelContext* context) override {
    int64_t total = 0;
    for (int i = 0; i < context->num_inputs(); ++i) total += context->input(i).NumElements();
    Tensor* positions = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({total}), &positions));
    int* position = positions->flat<int>().data();
    parallax::Distinct distinct(total);
    for (int i = 0; i < context->num_inputs(); ++i) {
      const Tensor& ids = context->input(i);
      const absl::Status status = ids.dtype() == tensorflow::DT_INT32
                                      ? Number(ids.flat<int32_t>().data(), ids.NumElements(), i, &distinct, position)
                                      : Number(ids.flat<int64_t>().data(), ids.NumElements(), i, &distinct, position);
      OP_REQUIRES_OK(context, status);
      position += ids.NumElements();
    }
    if (context->expected_output_dtype(0) == tensorflow::DT_INT32) {
      Order<int32_t, uint32_t>(context, distinct.keys(), positions);
    } else {
      Order<int64_t, uint64_t>(context, distinct.keys(), positions);
    }
  }

 private:
  template <typename T>
  absl::Status Number(const T* ids, int64_t size, int lookup, parallax::Distinct* distinct, int* positions) const {
    const int64_t rows = rows_[lookup], offset = offsets_[lookup];
    const int64_t below_zero = from_end_[lookup] ? rows : 0;  // is added to an id there
    for (int64_t i = 0; i < size; ++i) {
      const int64_t id = ids[i] < 0 ? ids[i] + below_zero : ids[i];
      if (id < 0 || (rows >= 0 && id >= rows)) return Outside(ids, size, lookup);
      positions[i] = distinct->NumberOf(id + offset);
    }
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status Outside(const T* ids, int64_t size, int lookup) const {
    std::string found;
    int shown = 0;
    for (int64_t i = 0; i < size; ++i) {
      if ((from_end_[lookup] ? -rows_[lookup] : 0) <= ids[i] && ids[i] < rows_[lookup]) continue;
      if (shown++ == kShown) {
        absl::StrAppend(&found, "...");
        break;
      }
      absl::StrAppend(&found, shown > 1 ? " " : "", ids[i]);
    }
    return absl::InvalidArgumentError(absl::StrCat("[An id must be a row of its table: ", tables_[lookup],
                                                   " has rows 0 to ", rows_[lookup] - 1, ", and was asked for] [",
                                                   found, "]"));
  }

  // Sorts the keys by destination, and converts the numbers in `positions` to places among them. Division dominates the
  // cost here, so each key is divided once, in the width (U) of its type (T).
  template <typename T, typename U>
  void Order(OpKernelContext* context, const std::vector<int64_t>& keys, Tensor* positions) const {
    const int64_t size = keys.size();
    Tensor *ordered = nullptr, *splits = nullptr, *local = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({size}), &ordered));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({count_}), &splits));
    OP_REQUIRES_OK(context, context->allocate_output(3, TensorShape({to_owners_ ? size : 0}), &local));
    int* split = splits->flat<int>().data();
    std::fill(split, split + count_, 0);
    const U turn = static_cast<U>(destinations_.size());
    std::vector<U> quotient(size);
    std::vector<int> slot(size), place(size), next(count_, 0);
    for (int64_t i = 0; i < size; ++i) {
      const U key = static_cast<U>(keys[i]);
      quotient[i] = key / turn;
      slot[i] = static_cast<int>(key % turn);
      ++split[destinations_[slot[i]]];
    }
    for (int i = 1; i < count_; ++i) next[i] = next[i - 1] + split[i - 1];
    T *to = ordered->flat<T>().data(), *local_to = local->flat<T>().data();
    for (int64_t i = 0; i < size; ++i) {
      place[i] = next[destinations_[slot[i]]]++;
      to[place[i]] = static_cast<T>(keys[i]);
      if (to_owners_) local_to[place[i]] = static_cast<T>(quotient[i] * shares_[slot[i]] + places_[slot[i]]);
    }
    int* position = positions->flat<int>().data();
    for (int64_t i = 0; i < positions->NumElements(); ++i) position[i] = place[position[i]];
  }

  std::vector<std::string> tables_;
  std::vector<int64_t> rows_, offsets_;
  std::vector<bool> from_end_;
  std::vector<int> destinations_, shares_, places_;  // the latter by slot: of its owner, and how many slots precede it
  int count_ = 0;
  bool to_owners_ = false;
};

}  // namespace

REGISTER_OP("ParallaxLeg")
    .Input("ids: Tids")
    .Output("keys: Tkeys")
    .Output("splits: int32")
    .Output("positions: int32")
    .Output("local: Tkeys")
    .Attr("Tids: list({int32, int64}) >= 1")
    .Attr("Tkeys: {int32, int64}")
    .Attr("tables: list(string)")
    .Attr("rows: list(int)")
    .Attr("offsets: list(int)")
    .Attr("from_end: list(bool) = []")
    .Attr("destinations: list(int) >= 1")
    .Attr("count: int >= 1")
    .Attr("to_owners: bool = false")
    .SetShapeFn([](InferenceContext* context) {
      int64_t count;
      TF_RETURN_IF_ERROR(context->GetAttr("count", &count));
      context->set_output(0, context->Vector(context->UnknownDim()));
      context->set_output(1, context->Vector(count));
      context->set_output(2, context->Vector(context->UnknownDim()));
      bool to_owners;
      TF_RETURN_IF_ERROR(context->GetAttr("to_owners", &to_owners));
      context->set_output(3, to_owners ? context->Vector(context->UnknownDim()) : context->Vector(0));
      return absl::OkStatus();
    })
    .Doc(R"(Merges ids of several lookups and orders them by where they go.

keys: id + offset of its lookup, each once; key k goes to destinations[k % len(destinations)], and keys of one
destination are in the order in which they come first.
splits: how many keys go to each of the `count` destinations.
positions: for each id of all lookups, one after the other, where its key is.
local: with `to_owners` the local row number of each key at its destination: with P destinations in turn, of which
`share` are the key's own and `place` of those come before it, (key / P) * share + place. Else nothing.
rows: by lookup, the rows of its table, of which an id must be one; -1 for ids that have been checked.
from_end: by lookup, whether ids below zero are counted from the end of the table; nowhere if it is empty.)");

REGISTER_KERNEL_BUILDER(Name("ParallaxLeg").Device(tensorflow::DEVICE_CPU), LegOp);
