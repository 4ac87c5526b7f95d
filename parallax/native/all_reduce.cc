// The all-reduce of gradients and other tensors among the members of a team, as a TensorFlow op.
//
// As with exchanges (exchange.cc), a node has its own communicator and thread: the set of reduced tensors is fixed when
// the graph is built, so a step needs no agreement, and an all-reduce begins as soon as its tensors are available.
// Several tensors travel as one message, with the same layout on all workers. They are copied to where the message is
// reduced (sums.h): into the memory that workers of a host share, or into the output.
#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "channel.h"
#include "sums.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

using parallax::Channel;
using parallax::Elements;
using parallax::Sums;
using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr long long kAlike = -2;           // the number of elements is unknown, but equal on all workers
constexpr long long kAlignment = 64;       // bytes; TensorFlow's kernels require it of a tensor

template <typename T>
void Combine(const std::string& kind, Elements* elements) {
  using Values = Eigen::Array<T, Eigen::Dynamic, 1>;
  using Into = Eigen::Map<Values>;
  using From = Eigen::Map<const Values>;
  elements->size = sizeof(T);
  if (kind == "sum") {
    elements->combine = [](void* into, const void* from, long long count) {
      Into(static_cast<T*>(into), count) += From(static_cast<const T*>(from), count);
    };
  } else if (kind == "min") {
    elements->combine = [](void* into, const void* from, long long count) {
      Into to(static_cast<T*>(into), count);
      to = to.min(From(static_cast<const T*>(from), count));
    };
  } else {
    elements->combine = [](void* into, const void* from, long long count) {
      Into to(static_cast<T*>(into), count);
      to = to.max(From(static_cast<const T*>(from), count));
    };
  }
}

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
    std::string kind;
    OP_REQUIRES_OK(context, context->GetAttr("kind", &kind));
    Combine<T>(kind, &elements_of_type_);
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
    const bool is_known = elements_ == kAlike || elements == elements_;
    channel->Do([this, context, done, all, is_known, sums = channel->sums()] {
      if (!is_known) context->SetStatus(Agree(context, all, sums));
      if (context->status().ok()) Reduce(context, all, sums);
      if (context->status().ok()) GiveOut(context, all);
      done();
    });
  }

 private:
  // Writes elements of the message, from `begin` on, `count` of them.
  void Fill(OpKernelContext* context, long long begin, long long count, T* to) const {
    long long start = 0;
    for (int i = 0; i < context->num_inputs() && count > 0; ++i) {
      const Tensor& input = context->input(i);
      const long long size = input.NumElements(), padded = Padded(size, sizeof(T));
      const long long here = std::min(start + padded - begin, count);  // of this part
      if (here > 0) {
        const long long first = begin - start, given = std::clamp(size - first, 0LL, here);
        const T* from = input.flat<T>().data() + first;
        const float scale = scales_[i];
        if (scale == 1.0f) {
          std::copy(from, from + given, to);
        } else {
          for (long long k = 0; k < given; ++k) to[k] = Scaled(from[k], scale);
        }
        std::fill(to + given, to + here, T(0));
        to += here;
        begin += here;
        count -= here;
      }
      start += padded;
    }
  }

  // Whether all workers have equal sizes, if the graph does not guarantee it: an open shape, or a run that omits parts.
  absl::Status Agree(OpKernelContext* context, const Tensor& all, Sums* sums) const {
    long long present = 0;
    for (int i = 0; i < context->num_inputs(); ++i) {
      present = (present * 31 + (context->input(i).NumElements() > 0)) % 1000000007;
    }
    const long long total = all.NumElements();
    const int64_t own[4] = {total, -total, present, -present};
    int64_t sizes[4];
    const auto pack = [&own](long long begin, long long count, char* to) { std::memcpy(to, own + begin, 8 * count); };
    Elements numbers;
    Combine<int64_t>("max", &numbers);
    sums->Reduce(pack, reinterpret_cast<char*>(sizes), 4, numbers);
    if (sizes[0] == -sizes[1] && sizes[2] == -sizes[3]) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        name(), ": what workers add up must be the same on all of them, and is from ", -sizes[1], " to ", sizes[0],
        " elements (rounded up to 64 bytes), here ", total, ", or of other tensors. Have all workers fetch the same."));
  }

  void Reduce(OpKernelContext* context, const Tensor& all, Sums* sums) const {
    const auto pack = [this, context](long long begin, long long count, char* to) {
      Fill(context, begin, count, reinterpret_cast<T*>(to));
    };
    char* values = const_cast<char*>(all.tensor_data().data());
    sums->Reduce(pack, values, all.NumElements(), elements_of_type_);
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

  Elements elements_of_type_;
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
    .Attr("among: {'workers', 'host', 'across', 'leaders', 'group', 'stage'} = 'workers'")
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
