// Ops on tables whose optimizer changes every row in every update, while only some rows have gradients.
//
// An update is applied to the rows with gradients alone. Other rows get it later, when they are read or updated: the
// same arithmetic, with a zero gradient and the scalars of each update that the row has missed.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "../distinct.h"
#include "lazy_rows.h"
#include "states.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/util.h"

namespace parallax_rows {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
template <typename T>
using Record = tensorflow::core::RefCountPtr<LazyRows<T>>;

template <typename T>
absl::Status FindRecord(OpKernelContext* context, int table, Record<T>* record) {
  const auto& handle = tensorflow::HandleFromInput(context, table);
  LazyRows<T>* found = nullptr;
  const absl::Status status = context->resource_manager()->Lookup(handle.container(), handle.name(), &found);
  if (absl::IsNotFound(status)) return absl::OkStatus();
  record->reset(found);
  return status;
}

template <typename T>
absl::Status Fits(const LazyRows<T>& record, const States<T>& states, int64_t count) {
  if (record.rows() == states.rows() && record.states() == count) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("A table keeps its rows and slots while rows of it miss updates, and ", states.name(), " had ",
                   record.rows(), " rows and ", record.states() - 1, " slots, and has ", states.rows(), " and ",
                   count - 1, ". Read the whole table before it changes."));
}

// The states of a node that reads one of them: all, if rows of the table may miss updates; otherwise only that one.
template <typename T>
absl::Status Open(OpKernelContext* context, int first, int which, const LazyRows<T>* record, States<T>* states) {
  const int count = context->num_inputs() - first;
  TF_RETURN_IF_ERROR(record != nullptr ? states->Find(context, first, count) : states->Find(context, first + which, 1));
  TF_RETURN_IF_ERROR(states->Lock(context));
  return record != nullptr ? Fits(*record, *states, count) : absl::OkStatus();
}

template <typename Index>
absl::Status InRange(const Tensor& indices, int64_t rows) {
  const auto flat = indices.flat<Index>();
  for (int64_t i = 0; i < flat.size(); ++i) {
    if (flat(i) < 0 || flat(i) >= rows) {
      return absl::InvalidArgumentError(absl::StrCat("indices", tensorflow::SliceDebugString(indices.shape(), i), " = ",
                                                     flat(i), " is not in [0, ", rows, ")"));
    }
  }
  return absl::OkStatus();
}

// Merges equal indices and sums their values: from zero on, in order, as unsorted_segment_sum does.
template <typename T, typename Index>
void Merge(const Tensor& indices, const Tensor& values, int64_t width, std::vector<int64_t>* rows,
           std::vector<T>* gradients) {
  const auto flat = indices.flat<Index>();
  const T* from = values.flat<T>().data();
  parallax::Distinct distinct(flat.size());
  gradients->reserve(flat.size() * width);
  for (int64_t i = 0; i < flat.size(); ++i, from += width) {
    const int64_t place = distinct.NumberOf(flat(i)) * width;
    if (place == static_cast<int64_t>(gradients->size())) gradients->resize(place + width, T(0));
    T* to = gradients->data() + place;
    for (int64_t column = 0; column < width; ++column) to[column] += from[column];
  }
  *rows = distinct.keys();
}

// Checks that an update has the number of scalars that its program expects, and a gradient for each index.
template <typename T, typename Index>
absl::Status FitsUpdate(const Program& program, const States<T>& states, const Tensor& values, const Tensor& indices,
                        const Tensor& scalars) {
  if (scalars.dims() != 1 || scalars.NumElements() != program.scalars) {
    return absl::InvalidArgumentError(absl::StrCat("Scalars are [", program.scalars, "], as the program says, and ",
                                                   "these are ", scalars.shape().DebugString(), "."));
  }
  TensorShape wanted = states.shape();
  wanted.set_dim(0, indices.NumElements());
  if (program.gradients > 1) wanted = TensorShape({indices.NumElements(), program.gradients * states.width()});
  if (indices.dims() != 1 || values.shape() != wanted) {
    return absl::InvalidArgumentError(absl::StrCat("Values have the shape of as many rows as there are indices, ",
                                                   wanted.DebugString(), ", and these are ",
                                                   values.shape().DebugString(), " for indices ",
                                                   indices.shape().DebugString(), "."));
  }
  return InRange<Index>(indices, states.rows());
}

absl::Status ProgramOf(OpKernelConstruction* context, Program* program, int* states) {
  std::string text;
  TF_RETURN_IF_ERROR(context->GetAttr("program", &text));
  TF_RETURN_IF_ERROR(context->GetAttr("N", states));
  int gradients = 1;
  TF_RETURN_IF_ERROR(context->GetAttr("gradients", &gradients));
  auto read = ReadProgram(text, gradients);
  TF_RETURN_IF_ERROR(read.status());
  *program = *std::move(read);
  if (program->states == *states) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("The program has as many states as the op, and has ", program->states,
                                                 " where the op has ", *states, "."));
}

template <typename T, typename Index>
class UpdateRowsOp : public OpKernel {
 public:
  explicit UpdateRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("program", &text_));
    OP_REQUIRES_OK(context, context->GetAttr("ring", &ring_));
    OP_REQUIRES_OK(context, ProgramOf(context, &program_, &count_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &values = context->input(0), &indices = context->input(1), &scalars = context->input(2);
    Record<T> record;
    OP_REQUIRES_OK(context, FindOrMake(context, &record));
    tensorflow::mutex_lock lock(*record->mutex());
    States<T> states;
    OP_REQUIRES_OK(context, states.Find(context, 3, count_));
    OP_REQUIRES_OK(context, states.Lock(context));
    OP_REQUIRES_OK(context, Check(*record, states, values, indices, scalars));
    const int64_t width = states.width();
    std::vector<int64_t> rows;
    std::vector<T> gradients;
    Merge<T, Index>(indices, values, width * program_.gradients, &rows, &gradients);
    std::vector<Row<T>> behind;
    for (const int64_t row : rows) record->Take(row, &behind);
    record->Bring(context, behind, states.data(), width);
    record->Push(scalars.flat<T>().data());
    record->Bring(context, record->TakeUpdate(rows, gradients, width), states.data(), width);
  }

 private:
  // A record in which no row is behind is recreated when the table or its updates have changed.
  absl::Status FindOrMake(OpKernelContext* context, Record<T>* record) {
    int64_t rows = 0;
    {
      States<T> states;
      TF_RETURN_IF_ERROR(states.Find(context, 3, count_));
      TF_RETURN_IF_ERROR(states.Lock(context));
      rows = states.rows();
    }
    const auto& handle = tensorflow::HandleFromInput(context, 3);
    TF_RETURN_IF_ERROR(FindRecord(context, 3, record));
    if (*record) {
      tensorflow::mutex_lock lock(*(*record)->mutex());
      const LazyRows<T>& known = **record;
      if (known.rows() == rows && known.states() == count_ && known.runs(text_, ring_)) return absl::OkStatus();
      if (!known.current()) return absl::OkStatus();  // refused elsewhere
      context->resource_manager()->Delete<LazyRows<T>>(handle.container(), handle.name()).IgnoreError();
    }
    LazyRows<T>* made = nullptr;
    const auto make = [&](LazyRows<T>** into) {
      *into = new LazyRows<T>(text_, program_, ring_, rows);
      return absl::OkStatus();
    };
    auto* resources = context->resource_manager();
    TF_RETURN_IF_ERROR(resources->LookupOrCreate<LazyRows<T>>(handle.container(), handle.name(), &made, make));
    record->reset(made);
    return absl::OkStatus();
  }

  absl::Status Check(const LazyRows<T>& record, const States<T>& states, const Tensor& values, const Tensor& indices,
                     const Tensor& scalars) const {
    TF_RETURN_IF_ERROR(Fits(record, states, count_));
    if (!record.runs(text_, ring_)) {
      return absl::FailedPreconditionError(absl::StrCat("All updates of a table run one program, and ", states.name(),
                                                        " has been updated by another one."));
    }
    return FitsUpdate<T, Index>(program_, states, values, indices, scalars);
  }

  std::string text_;
  Program program_;
  int64_t ring_;
  int count_;
};

template <typename T, typename Index>
class UpdateOnlyRowsOp : public OpKernel {
 public:
  explicit UpdateOnlyRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, ProgramOf(context, &program_, &count_));
    code_ = Compile(program_);
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &values = context->input(0), &indices = context->input(1), &scalars = context->input(2);
    States<T> states;
    OP_REQUIRES_OK(context, states.Find(context, 3, count_));
    OP_REQUIRES_OK(context, states.Lock(context));
    OP_REQUIRES_OK(context, (FitsUpdate<T, Index>(program_, states, values, indices, scalars)));
    const int64_t width = states.width();
    std::vector<int64_t> rows;
    std::vector<T> gradients, file(code_.scalar_file);
    Merge<T, Index>(indices, values, width * program_.gradients, &rows, &gradients);
    FillScalars(code_, scalars.flat<T>().data(), file.data());
    const auto update = [&](int64_t first, int64_t limit) {
      const T* from = gradients.data() + first * width * program_.gradients;
      UpdateOnlyRows(code_, file.data(), states.data(), width, rows.data() + first, from, limit - first);
    };
    auto threads = *context->device()->tensorflow_cpu_worker_threads();
    const int64_t cycles = (code_.made.body.size() + 2 * count_) * (width / 4 + 4);  // of a row, approximately
    tensorflow::Shard(threads.num_threads, threads.workers, rows.size(), cycles, update);
  }

 private:
  Program program_;
  Code code_;
  int count_;
};

template <typename T, typename Index>
class GatherRowsOp : public OpKernel {
 public:
  explicit GatherRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("which", &which_));
  }

  void Compute(OpKernelContext* context) override {
    Record<T> record;
    OP_REQUIRES_OK(context, FindRecord(context, 1, &record));
    std::unique_ptr<tensorflow::mutex_lock> lock;
    if (record) lock = std::make_unique<tensorflow::mutex_lock>(*record->mutex());
    const bool behind = record && !record->current();
    States<T> states;
    OP_REQUIRES_OK(context, Open(context, 1, which_, behind ? record.get() : nullptr, &states));
    const Tensor& indices = context->input(0);
    OP_REQUIRES_OK(context, InRange<Index>(indices, states.rows()));
    if (behind) {
      const auto flat = indices.flat<Index>();
      std::vector<Row<T>> taken;
      for (int64_t i = 0; i < flat.size(); ++i) record->Take(flat(i), &taken);
      record->Bring(context, taken, states.data(), states.width());
    }
    Copy(context, indices, states, states.data()[behind ? which_ : 0]);
  }

 private:
  void Copy(OpKernelContext* context, const Tensor& indices, const States<T>& states, const T* from) const {
    TensorShape shape = indices.shape();
    for (int axis = 1; axis < states.shape().dims(); ++axis) shape.AddDim(states.shape().dim_size(axis));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &output));
    const int64_t width = states.width();
    const auto flat = indices.flat<Index>();
    T* to = output->flat<T>().data();
    const auto copy = [&](int64_t first, int64_t limit) {
      for (int64_t i = first; i < limit; ++i) std::memcpy(to + i * width, from + flat(i) * width, width * sizeof(T));
    };
    auto threads = *context->device()->tensorflow_cpu_worker_threads();
    tensorflow::Shard(threads.num_threads, threads.workers, flat.size(), width * sizeof(T) + 50, copy);
  }

  int which_;
};

// Brings all rows up to date that lack updates. The record and the variables are locked.
template <typename T>
void BringAll(OpKernelContext* context, LazyRows<T>* record, const States<T>& states) {
  std::vector<Row<T>> behind;
  record->TakeRange(0, record->rows(), &behind);
  record->Bring(context, behind, states.data(), states.width());
  record->AllCurrent();
}

template <typename T>
class ReadRowsOp : public OpKernel {
 public:
  explicit ReadRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("which", &which_));
  }

  void Compute(OpKernelContext* context) override {
    Record<T> record;
    OP_REQUIRES_OK(context, FindRecord(context, 0, &record));
    std::unique_ptr<tensorflow::mutex_lock> lock;
    if (record) lock = std::make_unique<tensorflow::mutex_lock>(*record->mutex());
    States<T> states;
    const bool behind = record && !record->current();
    OP_REQUIRES_OK(context, Open(context, 0, which_, behind ? record.get() : nullptr, &states));
    if (behind) BringAll(context, record.get(), states);
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, states.shape(), &output));
    std::memcpy(output->flat<T>().data(), states.data()[behind ? which_ : 0], output->TotalBytes());
  }

 private:
  int which_;
};

template <typename T>
class BringUpToDateOp : public OpKernel {
 public:
  explicit BringUpToDateOp(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    Record<T> record;
    OP_REQUIRES_OK(context, FindRecord(context, 0, &record));
    if (!record) return;
    tensorflow::mutex_lock lock(*record->mutex());
    if (record->current()) return;
    States<T> states;
    const absl::Status status = Open(context, 0, 0, record.get(), &states);
    if (absl::IsNotFound(status) || absl::IsFailedPrecondition(status)) {
      record->AllCurrent();  // an uninitialized variable starts from scratch, and misses nothing
      return;
    }
    OP_REQUIRES_OK(context, status);
    BringAll(context, record.get(), states);
  }
};

#define REGISTER(T)                                                                                                  \
  REGISTER_KERNEL_BUILDER(                                                                                           \
      Name("ParallaxBringUpToDate").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), BringUpToDateOp<T>);      \
  REGISTER_KERNEL_BUILDER(Name("ParallaxReadRows").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),            \
                          ReadRowsOp<T>);                                                                            \
  REGISTER_INDEXED(T, tensorflow::int32)                                                                             \
  REGISTER_INDEXED(T, int64_t)
#define REGISTER_INDEXED(T, Index)                                                                         \
  REGISTER_KERNEL_BUILDER(Name("ParallaxUpdateRows")                                                       \
                              .Device(tensorflow::DEVICE_CPU)                                              \
                              .TypeConstraint<T>("T")                                                      \
                              .TypeConstraint<Index>("Tindices"),                                          \
                          UpdateRowsOp<T, Index>);                                                         \
  REGISTER_KERNEL_BUILDER(Name("ParallaxUpdateOnlyRows")                                                   \
                              .Device(tensorflow::DEVICE_CPU)                                              \
                              .TypeConstraint<T>("T")                                                      \
                              .TypeConstraint<Index>("Tindices"),                                          \
                          UpdateOnlyRowsOp<T, Index>);                                                     \
  REGISTER_KERNEL_BUILDER(Name("ParallaxGatherRows")                                                       \
                              .Device(tensorflow::DEVICE_CPU)                                              \
                              .TypeConstraint<T>("T")                                                      \
                              .TypeConstraint<Index>("Tindices"),                                          \
                          GatherRowsOp<T, Index>);
REGISTER(float)
REGISTER(double)

}  // namespace
}  // namespace parallax_rows
