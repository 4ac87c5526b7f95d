// Computes some rows of a tensor that TensorFlow's random ops would draw in full: an owner draws only its own rows of
// an initial value.
//
// TensorFlow fills a tensor from a counter-based generator, Philox (Salmon et al., "Parallel Random Numbers: As Easy as
// 1, 2, 3", SC 2011), in groups of values: group g of a tensor comes from the generator advanced by g, or by a fixed
// length times g if a value may need several tries (tensorflow/core/kernels/random_op_cpu.h). So a value depends only
// on the seeds and its position. Generator and distributions here are TensorFlow's own.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/kernels/random_ops_util.h"
#include "tensorflow/core/lib/random/random_distributions.h"
#include "tensorflow/core/util/guarded_philox_random.h"
#include "tensorflow/core/util/work_sharder.h"

namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::random::PhiloxRandom;
using tensorflow::random::SingleSampleAdapter;

constexpr int kReserved = 256;  // generator outputs per value: random_op.cc, random_op_cpu.h

// The selected rows, and the size of a row.
struct Rows {
  int64_t turn;                // rows of a turn
  std::vector<int64_t> slots;  // the selected rows of a turn
  int64_t width;               // values of a row

  int64_t Row(int64_t local) const {
    const int64_t share = slots.size();
    return local / share * turn + slots[local % share];
  }
};

template <class Distribution>
typename Distribution::ResultType DrawGroup(const PhiloxRandom& stream, int64_t group, Distribution distribution) {
  PhiloxRandom generator = stream;
  if constexpr (Distribution::kVariableSamplesPerOutput) {
    generator.Skip(group * (Distribution::kResultElementCount * kReserved / PhiloxRandom::kResultElementCount));
    SingleSampleAdapter<PhiloxRandom> samples(&generator);
    return distribution(&samples);
  } else {
    generator.Skip(group);
    return distribution(&generator);
  }
}

template <class Distribution>
void Draw(OpKernelContext* context, const PhiloxRandom& stream, const Rows& rows, Distribution distribution,
          Tensor* output) {
  constexpr int kGroup = Distribution::kResultElementCount;
  auto* values = output->flat<typename Distribution::ResultElementType>().data();
  const auto draw = [&](int64_t first, int64_t limit) {
    for (int64_t local = first; local < limit; ++local) {
      const int64_t begin = rows.Row(local) * rows.width, end = begin + rows.width;
      auto* to = values + local * rows.width;
      for (int64_t group = begin / kGroup; group * kGroup < end; ++group) {
        const auto drawn = DrawGroup(stream, group, distribution);
        const int64_t from = std::max(begin, group * kGroup), until = std::min(end, (group + 1) * kGroup);
        to = std::copy(&drawn[0] + (from - group * kGroup), &drawn[0] + (until - group * kGroup), to);
      }
    }
  };
  auto threads = *context->device()->tensorflow_cpu_worker_threads();
  const int64_t groups = rows.width / kGroup + 1;
  const int64_t cost = groups * kGroup * (PhiloxRandom::kElementCost + Distribution::kElementCost);
  tensorflow::Shard(threads.num_threads, threads.workers, output->dim_size(0), cost, draw);
}

template <typename T>
class RandomRowsOp : public OpKernel {
 public:
  explicit RandomRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("distribution", &distribution_));
    OP_REQUIRES_OK(context, context->GetAttr("shape", &shape_));
    OP_REQUIRES_OK(context, context->GetAttr("total", &total_));
    OP_REQUIRES_OK(context, context->GetAttr("turn", &rows_.turn));
    OP_REQUIRES_OK(context, context->GetAttr("slots", &rows_.slots));
    std::vector<int64_t> seeds;
    OP_REQUIRES_OK(context, context->GetAttr("seeds", &seeds));
    OP_REQUIRES(context, seeds.size() == 2, absl::InvalidArgumentError("There are two seeds."));
    OP_REQUIRES(context, shape_.dims() > 0, absl::InvalidArgumentError("What has rows has a dimension of them."));
    rows_.width = 1;
    for (int axis = 1; axis < shape_.dims(); ++axis) rows_.width *= shape_.dim_size(axis);
    const int64_t count = shape_.dim_size(0);
    OP_REQUIRES(context, count == 0 || (!rows_.slots.empty() && rows_.Row(count - 1) < total_),
                absl::InvalidArgumentError("All rows wanted must be below the total."));
    stream_.Init(seeds[0], seeds[1]);
  }

  void Compute(OpKernelContext* context) override {
    const int streams = context->num_inputs() - (distribution_ == "uniform_int" ? 2 : 0);
    PhiloxRandom stream;
    if (streams == 0) {  // each run of the op advances the stream by its full tensor
      stream = stream_.ReserveRandomOutputs(total_ * rows_.width, kReserved);
    } else {
      const Tensor &key = context->input(0), &counter = context->input(1);
      OP_REQUIRES(context, key.NumElements() == 1 && counter.NumElements() >= 2,
                  absl::InvalidArgumentError("A key has one number, and a counter two."));
      stream = tensorflow::GetPhiloxRandomFromCounterKeyMem(counter.flat<tensorflow::uint64>().data(),
                                                            key.flat<tensorflow::uint64>().data());
    }
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape_, &output));
    if (output->NumElements() > 0) Fill(context, stream, streams, output);
  }

 private:
  void Fill(OpKernelContext* context, const PhiloxRandom& stream, int streams, Tensor* output) {
    using tensorflow::random::NormalDistribution;
    using tensorflow::random::TruncatedNormalDistribution;
    using tensorflow::random::UniformDistribution;
    if constexpr (std::is_integral_v<T>) {
      const T low = static_cast<T>(context->input(streams).scalar<int64_t>()());
      const T high = static_cast<T>(context->input(streams + 1).scalar<int64_t>()());
      OP_REQUIRES(context, low < high, absl::InvalidArgumentError("Need minval < maxval."));
      Draw(context, stream, rows_, UniformDistribution<PhiloxRandom, T>(low, high), output);
    } else if (distribution_ == "uniform") {
      Draw(context, stream, rows_, UniformDistribution<PhiloxRandom, T>(), output);
    } else if (distribution_ == "normal") {
      Draw(context, stream, rows_, NormalDistribution<PhiloxRandom, T>(), output);
    } else {
      using Single = SingleSampleAdapter<PhiloxRandom>;
      Draw(context, stream, rows_, TruncatedNormalDistribution<Single, T>(), output);
    }
  }

  std::string distribution_;
  TensorShape shape_;
  int64_t total_;
  Rows rows_;
  tensorflow::GuardedPhiloxRandom stream_;
};

}  // namespace

REGISTER_OP("ParallaxRandomRows")
    .Input("stream: streams * uint64")
    .Input("bounds: limits * int64")
    .Output("rows: dtype")
    .Attr("streams: int >= 0")
    .Attr("limits: int >= 0")
    .Attr("dtype: {half, bfloat16, float, double, int32, int64}")
    .Attr("distribution: {'uniform', 'normal', 'truncated_normal', 'uniform_int'}")
    .Attr("seeds: list(int)")
    .Attr("total: int >= 0")
    .Attr("turn: int >= 1")
    .Attr("slots: list(int)")
    .Attr("shape: shape")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      tensorflow::TensorShape shape;
      TF_RETURN_IF_ERROR(context->GetAttr("shape", &shape));
      tensorflow::shape_inference::ShapeHandle handle;
      TF_RETURN_IF_ERROR(context->MakeShapeFromTensorShape(shape, &handle));
      context->set_output(0, handle);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Draws rows of what RandomUniform, RandomStandardNormal, TruncatedNormal, RandomUniformInt or their stateless kin draw.

stream: nothing, or a key and a counter, as the stateless ops take them.
bounds: nothing, or of integers the least and the one after the greatest.
rows: of each turn of the whole tensor's rows those of `slots`, in order.
distribution: of the values.
seeds: seed and seed2, where there is no `stream`.
total: rows of the whole tensor.
turn: rows of a turn.
slots: which rows of a turn.
shape: of `rows`.
)doc");

#define REGISTER(T)                                                                                                   \
  REGISTER_KERNEL_BUILDER(Name("ParallaxRandomRows").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("dtype"), \
                          RandomRowsOp<T>)
REGISTER(Eigen::half);
REGISTER(tensorflow::bfloat16);
REGISTER(float);
REGISTER(double);
REGISTER(tensorflow::int32);
REGISTER(int64_t);
#undef REGISTER
