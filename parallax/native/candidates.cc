// Draws candidates as TensorFlow's samplers do, from a given position in the stream: the op itself is stateless.
//
// TensorFlow's op advances its generator by a fixed length whenever it runs (tensorflow/core/kernels/
// candidate_sampler_ops.cc), and draws with the samplers that are used here too.
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/kernels/range_sampler.h"
#include "tensorflow/core/lib/random/philox_random.h"
#include "tensorflow/core/lib/random/simple_philox.h"

namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::RangeSampler;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class CandidatesOp : public OpKernel {
 public:
  explicit CandidatesOp(OpKernelConstruction* context) : OpKernel(context) {
    int64_t range_max;
    bool is_log_uniform;
    OP_REQUIRES_OK(context, context->GetAttr("num_true", &num_true_));
    OP_REQUIRES_OK(context, context->GetAttr("num_sampled", &num_sampled_));
    OP_REQUIRES_OK(context, context->GetAttr("unique", &unique_));
    OP_REQUIRES_OK(context, context->GetAttr("range_max", &range_max));
    OP_REQUIRES_OK(context, context->GetAttr("log_uniform", &is_log_uniform));
    OP_REQUIRES(context, !unique_ || num_sampled_ <= range_max,
                absl::InvalidArgumentError("Sampler's range is too small."));
    if (is_log_uniform) {
      sampler_ = std::make_unique<tensorflow::LogUniformSampler>(range_max);
    } else {
      sampler_ = std::make_unique<tensorflow::UniformSampler>(range_max);
    }
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &true_classes = context->input(0), &stream = context->input(1);
    OP_REQUIRES(context, true_classes.dims() == 2 && true_classes.dim_size(1) == num_true_,
                absl::InvalidArgumentError("true_classes must be a matrix with num_true columns."));
    OP_REQUIRES(context, stream.NumElements() == 3,
                absl::InvalidArgumentError("A stream has three numbers: count, seed2 and seed."));
    const auto place = stream.flat<int64_t>();
    tensorflow::random::PhiloxRandom generator(place(2), place(1));
    generator.Skip(place(0));
    tensorflow::random::SimplePhilox random(&generator);

    Tensor *sampled = nullptr, *true_count = nullptr, *sampled_count = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({num_sampled_}), &sampled));
    OP_REQUIRES_OK(context, context->allocate_output(1, true_classes.shape(), &true_count));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({num_sampled_}), &sampled_count));
    const auto extras = true_classes.flat<int64_t>();
    sampler_->SampleBatchGetExpectedCount(
        &random, unique_, absl::MakeSpan(sampled->flat<int64_t>().data(), num_sampled_),
        absl::MakeSpan(sampled_count->flat<float>().data(), num_sampled_),
        absl::MakeConstSpan(extras.data(), extras.size()),
        absl::MakeSpan(true_count->flat<float>().data(), extras.size()));
  }

 private:
  int64_t num_true_, num_sampled_;
  bool unique_;
  std::unique_ptr<RangeSampler> sampler_;
};

}  // namespace

REGISTER_OP("ParallaxCandidates")
    .Input("true_classes: int64")
    .Input("stream: int64")
    .Output("sampled_candidates: int64")
    .Output("true_expected_count: float")
    .Output("sampled_expected_count: float")
    .Attr("num_true: int >= 1")
    .Attr("num_sampled: int >= 1")
    .Attr("unique: bool")
    .Attr("range_max: int >= 1")
    .Attr("log_uniform: bool")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      int64_t num_sampled;
      TF_RETURN_IF_ERROR(context->GetAttr("num_sampled", &num_sampled));
      context->set_output(0, context->Vector(num_sampled));
      context->set_output(1, context->input(0));
      context->set_output(2, context->Vector(num_sampled));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Draws what LogUniformCandidateSampler or UniformCandidateSampler draw when they have come to a place in their stream.

true_classes: as those take them.
stream: `[3]`: how far the generator was moved on, seed2, seed.
log_uniform: whether the distribution is log-uniform; else uniform.
)doc");

REGISTER_KERNEL_BUILDER(Name("ParallaxCandidates").Device(tensorflow::DEVICE_CPU), CandidatesOp);
