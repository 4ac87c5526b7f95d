// The all-reduce of gradients and other tensors between workers, as a TensorFlow op that calls MPI.
//
// As with exchanges (exchange.cc), a node has its own communicator and thread: the set of reduced tensors is fixed when
// the graph is built, so a step needs no agreement, and an all-reduce begins as soon as its tensors are available.
// Several tensors travel as one message, with the same layout on all workers.
#include <mpi.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "channel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

using parallax::Channel;
using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr long long kAlike = -2;           // the number of elements is unknown, but equal on all workers
constexpr long long kAlignment = 64;       // bytes; TensorFlow's kernels require it of a tensor
constexpr long long kMostElements = 1 << 30;  // per call: MPI counts in int

// Sums, minima and maxima of types that MPI does not support.
template <typename T>
struct Own {
  static void Sum(void* in, void* out, int* n, MPI_Datatype*) {
    for (int i = 0; i < *n; ++i) At(out)[i] = static_cast<T>(Wide(in, i) + Wide(out, i));
  }
  static void Min(void* in, void* out, int* n, MPI_Datatype*) {
    for (int i = 0; i < *n; ++i) At(out)[i] = static_cast<T>(std::min(Wide(in, i), Wide(out, i)));
  }
  static void Max(void* in, void* out, int* n, MPI_Datatype*) {
    for (int i = 0; i < *n; ++i) At(out)[i] = static_cast<T>(std::max(Wide(in, i), Wide(out, i)));
  }
  static T* At(void* values) { return static_cast<T*>(values); }
  static float Wide(void* values, int i) { return static_cast<float>(At(values)[i]); }
};

// MPI's name of an element type, and of its reduction.
template <typename T>
struct Element {
  static MPI_Datatype Type();
  static MPI_Op Op(const std::string& kind) { return kind == "sum" ? MPI_SUM : kind == "min" ? MPI_MIN : MPI_MAX; }
};
template <> MPI_Datatype Element<float>::Type() { return MPI_FLOAT; }
template <> MPI_Datatype Element<double>::Type() { return MPI_DOUBLE; }
template <> MPI_Datatype Element<int32_t>::Type() { return MPI_INT32_T; }
template <> MPI_Datatype Element<int64_t>::Type() { return MPI_INT64_T; }
template <> MPI_Datatype Element<int16_t>::Type() { return MPI_INT16_T; }
template <> MPI_Datatype Element<int8_t>::Type() { return MPI_INT8_T; }
template <> MPI_Datatype Element<uint8_t>::Type() { return MPI_UINT8_T; }
template <> MPI_Datatype Element<uint16_t>::Type() { return MPI_UINT16_T; }

template <>
struct Element<Eigen::half> {
  static MPI_Datatype Type() { return MPI_UINT16_T; }
  static MPI_Op Op(const std::string& kind) {
    using Halves = Own<Eigen::half>;
    static const std::vector<MPI_Op> ops = [] {
      std::vector<MPI_Op> made(3);
      MPI_Op_create(&Halves::Sum, 1, &made[0]);
      MPI_Op_create(&Halves::Min, 1, &made[1]);
      MPI_Op_create(&Halves::Max, 1, &made[2]);
      return made;
    }();
    return ops[kind == "sum" ? 0 : kind == "min" ? 1 : 2];
  }
};

template <typename T>
T Scaled(T value, float scale) {
  return static_cast<T>(value * static_cast<T>(scale));
}

template <>
Eigen::half Scaled<Eigen::half>(Eigen::half value, float scale) {
  return static_cast<Eigen::half>(static_cast<float>(value) * scale);
}

long long Padded(long long elements, long long size) {
  const long long by = kAlignment / size;
  return (elements + by - 1) / by * by;
}

// Tensors of all workers, reduced element by element. The outputs share one contiguous buffer.
template <typename T>
class AllReduceOp : public AsyncOpKernel {
 public:
  explicit AllReduceOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("kind", &kind_));
    OP_REQUIRES_OK(context, context->GetAttr("scales", &scales_));
    OP_REQUIRES(context, static_cast<int>(scales_.size()) == context->num_inputs(),
                absl::InvalidArgumentError(absl::StrCat(name(), ": there must be a scale for each part.")));
    int64_t elements;
    OP_REQUIRES_OK(context, context->GetAttr("elements", &elements));
    elements_ = elements;
    const bool is_scaled = std::any_of(scales_.begin(), scales_.end(), [](float scale) { return scale != 1.0f; });
    OP_REQUIRES(context, !is_scaled || !std::is_integral<T>::value,
                absl::InvalidArgumentError(absl::StrCat(name(), ": integers must be added up as they are.")));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    long long elements = 0;
    for (int i = 0; i < context->num_inputs(); ++i) elements += context->input(i).NumElements();
    // Runs of all parts and runs of some have separate communicators, so that they cannot be confused.
    const bool is_part = elements_ >= 0 && elements != elements_;
    Channel*& channel = is_part ? channel_of_parts_ : channel_;
    if (channel == nullptr) channel = parallax::FindChannel(is_part ? absl::StrCat(name(), ":parts") : name());
    OP_REQUIRES_ASYNC(context, channel != nullptr,
                      absl::FailedPreconditionError(absl::StrCat(
                          name(), " has no communicator: open the session by parallel_run.")), done);
    long long total = 0;
    for (int i = 0; i < context->num_inputs(); ++i) total += Padded(context->input(i).NumElements(), sizeof(T));
    Tensor all;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_temp(tensorflow::DataTypeToEnum<T>::value, TensorShape({total}), &all),
                         done);
    Fill(context, all.flat<T>().data());
    const bool is_known = elements_ == kAlike || elements == elements_;
    channel->Do([this, context, done, all, is_known, comm = channel->comm()] {
      if (!is_known) context->SetStatus(Agree(context, all, comm));
      if (context->status().ok()) Reduce(all, comm);
      if (context->status().ok()) GiveOut(context, all);
      done();
    });
  }

 private:
  void Fill(OpKernelContext* context, T* to) const {
    for (int i = 0; i < context->num_inputs(); ++i) {
      const Tensor& input = context->input(i);
      const T* from = input.flat<T>().data();
      const long long size = input.NumElements(), padded = Padded(size, sizeof(T));
      const float scale = scales_[i];
      if (scale == 1.0f) {
        std::copy(from, from + size, to);
      } else {
        for (long long k = 0; k < size; ++k) to[k] = Scaled(from[k], scale);
      }
      std::fill(to + size, to + padded, T(0));
      to += padded;
    }
  }

  // Whether all workers have equal sizes, if the graph does not guarantee it: an open shape, or a run that omits parts.
  absl::Status Agree(OpKernelContext* context, const Tensor& all, MPI_Comm comm) const {
    long long present = 0;
    for (int i = 0; i < context->num_inputs(); ++i) {
      present = (present * 31 + (context->input(i).NumElements() > 0)) % 1000000007;
    }
    const long long total = all.NumElements();
    long long sizes[4] = {total, -total, present, -present};
    MPI_Allreduce(MPI_IN_PLACE, sizes, 4, MPI_LONG_LONG, MPI_MAX, comm);
    if (sizes[0] == -sizes[1] && sizes[2] == -sizes[3]) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        name(), ": what workers add up must be the same on all of them, and is from ", -sizes[1], " to ", sizes[0],
        " elements (rounded up to 64 bytes), here ", total, ", or of other tensors. Have all workers fetch the same."));
  }

  void Reduce(const Tensor& all, MPI_Comm comm) const {
    const long long total = all.NumElements();
    T* values = const_cast<T*>(all.flat<T>().data());
    for (long long begin = 0; begin < total; begin += kMostElements) {
      MPI_Allreduce(MPI_IN_PLACE, values + begin, static_cast<int>(std::min(total - begin, kMostElements)),
                    Element<T>::Type(), Element<T>::Op(kind_), comm);
    }
  }

  void GiveOut(OpKernelContext* context, const Tensor& all) const {
    long long begin = 0;
    for (int i = 0; i < context->num_inputs(); ++i) {
      const TensorShape& shape = context->input(i).shape();
      Tensor reduced(all.dtype());
      if (!reduced.CopyFrom(all.Slice(begin, begin + shape.num_elements()), shape)) {
        return context->SetStatus(absl::InternalError(absl::StrCat(name(), ": output ", i, " has another size")));
      }
      context->set_output(i, reduced);
      begin += Padded(shape.num_elements(), sizeof(T));
    }
  }

  std::string kind_;
  std::vector<float> scales_;
  int64_t elements_ = -1;
  Channel* channel_ = nullptr;
  Channel* channel_of_parts_ = nullptr;
};

}  // namespace

REGISTER_OP("ParallaxAllReduce")
    .Input("parts: N * T")
    .Output("reduced: N * T")
    .Attr("N: int >= 1")
    .Attr("T: {half, float, double, int8, uint8, int16, uint16, int32, int64}")
    .Attr("kind: {'sum', 'min', 'max'}")
    .Attr("scales: list(float)")
    .Attr("elements: int >= -2")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    })
    .Doc("The sum (of parts times scales), minimum or maximum of the workers' parts, element by element. How many there are may be "
         "known (elements); where it is not (-1), the workers compare their sizes first, "
         "unless they are known to be equal (-2).");

#define REGISTER(type) \
  REGISTER_KERNEL_BUILDER( \
      Name("ParallaxAllReduce").Device(tensorflow::DEVICE_CPU).TypeConstraint<type>("T"), AllReduceOp<type>)
REGISTER(Eigen::half);
REGISTER(float);
REGISTER(double);
REGISTER(int8_t);
REGISTER(uint8_t);
REGISTER(int16_t);
REGISTER(uint16_t);
REGISTER(int32_t);
REGISTER(int64_t);
#undef REGISTER
