// An emulated accelerator, which computes nothing but takes time: layers are launched on it, and the host waits for
// their outputs.
//
// Like a stream, it runs one layer at a time, in launch order, and a launch does not block: the next layer is launched
// while this one runs. A layer begins when it is launched or when the one before it ends, whichever is later. Waiting
// occupies no thread of TensorFlow: one thread of the process sleeps until the next wait ends.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace twin {
namespace {

using Clock = std::chrono::steady_clock;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::shape_inference::InferenceContext;

// Sets the outputs' shapes; the `first` outputs have no shape in the attribute, and are scalars.
absl::Status SetShapes(InferenceContext* context, int first) {
  std::vector<tensorflow::PartialTensorShape> shapes;
  TF_RETURN_IF_ERROR(context->GetAttr("output_shapes", &shapes));
  if (static_cast<int>(shapes.size()) + first != context->num_outputs())
    return absl::InvalidArgumentError("There must be a shape for each output.");
  for (int i = 0; i < first; ++i) context->set_output(i, context->Scalar());
  for (size_t i = 0; i < shapes.size(); ++i) {
    tensorflow::shape_inference::ShapeHandle shape;
    TF_RETURN_IF_ERROR(context->MakeShapeFromPartialTensorShape(shapes[i], &shape));
    context->set_output(first + i, shape);
  }
  return absl::OkStatus();
}

REGISTER_OP("TwinLaunch")
    .Input("inputs: input_types")
    .Output("until: int64")
    .Output("outputs: output_types")
    .Attr("input_types: list(type) >= 0")
    .Attr("output_types: list(type) >= 0")
    .Attr("output_shapes: list(shape) >= 0")
    .Attr("seconds: float")
    .Attr("passes: bool")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) { return SetShapes(context, 1); })
    .Doc(R"doc(
Launches a layer that occupies the accelerator for `seconds`, once its inputs are available. The outputs stand for
tensors on the accelerator, and are available at once: with `passes` the first of the inputs, else zeros of
`output_shapes`. `until` is the time when the layer ends, in nanoseconds of this process's steady clock.
)doc");

REGISTER_OP("TwinWait")
    .Input("until: int64")
    .Input("inputs: input_types")
    .Output("outputs: output_types")
    .Attr("input_types: list(type) >= 0")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .Attr("passes: bool")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) { return SetShapes(context, 0); })
    .Doc(R"doc(
Waits until a layer ends, and returns its outputs to the host: with `passes` the first of the inputs, else zeros of
`output_shapes`.
)doc");

// The process's accelerator.
class Accelerator {
 public:
  // Returns the only instance, which is never destroyed, as its thread may outlive static destructors.
  static Accelerator& OfThisProcess() {
    static Accelerator* const accelerator = new Accelerator;
    return *accelerator;
  }

  // Launches a layer of this length, and returns the time when it ends.
  Clock::time_point Launch(Clock::duration takes) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_at_ = std::max(free_at_, Clock::now()) + takes;
    return free_at_;
  }

  // Calls `done` at this time.
  void At(Clock::time_point until, std::function<void()> done) {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool is_next = waits_.empty() || until < waits_.top().until;
    waits_.push({until, std::move(done)});
    if (is_next) changed_.notify_one();
  }

 private:
  struct Wait {
    Clock::time_point until;
    std::function<void()> done;
    bool operator<(const Wait& other) const { return until > other.until; }  // the earliest is on top of the queue
  };

  Accelerator() { std::thread([this] { Work(); }).detach(); }

  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      if (waits_.empty()) {
        changed_.wait(lock);
      } else if (const Clock::time_point until = waits_.top().until; until > Clock::now()) {
        changed_.wait_until(lock, until);
      } else {
        const std::function<void()> done = waits_.top().done;
        waits_.pop();
        lock.unlock();
        done();  // TensorFlow passes ops that are now ready to its own threads
        lock.lock();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::priority_queue<Wait> waits_;
  Clock::time_point free_at_ = Clock::time_point::min();
};

// The values of the outputs.
class Given {
 public:
  // The first `other_inputs` inputs and `other_outputs` outputs are not set here.
  Given(OpKernelConstruction* context, int other_inputs, int other_outputs)
      : other_inputs_(other_inputs), other_outputs_(other_outputs) {
    OP_REQUIRES_OK(context, context->GetAttr("passes", &passes_));
    OP_REQUIRES_OK(context, passes_ ? CheckTypes(context) : MakeZeros(context));
  }

  void Set(OpKernelContext* context) const {
    for (int i = other_outputs_; i < context->num_outputs(); ++i) {
      const int k = i - other_outputs_;
      context->set_output(i, passes_ ? context->input(other_inputs_ + k) : zeros_[k]);
    }
  }

 private:
  absl::Status CheckTypes(OpKernelConstruction* context) const {
    const int outputs = context->num_outputs() - other_outputs_;
    bool same = outputs <= context->num_inputs() - other_inputs_;
    for (int k = 0; same && k < outputs; ++k)
      same = context->output_type(other_outputs_ + k) == context->input_type(other_inputs_ + k);
    return same ? absl::OkStatus() : absl::InvalidArgumentError("What passes through must keep its type.");
  }

  // Made once: in each step they would cost time of the cores, which an accelerator does not use.
  absl::Status MakeZeros(OpKernelConstruction* context) {
    std::vector<tensorflow::TensorShape> shapes;
    TF_RETURN_IF_ERROR(context->GetAttr("output_shapes", &shapes));
    for (size_t k = 0; k < shapes.size(); ++k) {
      const tensorflow::DataType type = context->output_type(other_outputs_ + k);
      if (!tensorflow::DataTypeCanUseMemcpy(type)) return absl::InvalidArgumentError("Zeros must be numbers.");
      Tensor zeros;
      TF_RETURN_IF_ERROR(context->allocate_temp(type, shapes[k], &zeros));
      std::memset(zeros.data(), 0, zeros.TotalBytes());
      zeros_.push_back(std::move(zeros));
    }
    return absl::OkStatus();
  }

  const int other_inputs_, other_outputs_;
  bool passes_ = false;
  std::vector<Tensor> zeros_;
};

class Launch : public tensorflow::OpKernel {
 public:
  explicit Launch(OpKernelConstruction* context) : OpKernel(context), given_(context, 0, 1) {
    float seconds = 0;
    OP_REQUIRES_OK(context, context->GetAttr("seconds", &seconds));
    OP_REQUIRES(context, seconds >= 0, absl::InvalidArgumentError("A layer takes no less than 0 seconds."));
    takes_ = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  void Compute(OpKernelContext* context) override {
    Tensor* until = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &until));
    const auto since = Accelerator::OfThisProcess().Launch(takes_).time_since_epoch();
    until->scalar<int64_t>()() = std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
    given_.Set(context);
  }

  bool IsExpensive() override { return false; }

 private:
  Given given_;
  Clock::duration takes_;
};

class Wait : public tensorflow::AsyncOpKernel {
 public:
  explicit Wait(OpKernelConstruction* context) : AsyncOpKernel(context), given_(context, 1, 0) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    given_.Set(context);
    const std::chrono::nanoseconds since(context->input(0).scalar<int64_t>()());
    Accelerator::OfThisProcess().At(Clock::time_point(since), std::move(done));
  }

 private:
  Given given_;
};

REGISTER_KERNEL_BUILDER(Name("TwinLaunch").Device(tensorflow::DEVICE_CPU), Launch);
REGISTER_KERNEL_BUILDER(Name("TwinWait").Device(tensorflow::DEVICE_CPU), Wait);

}  // namespace
}  // namespace twin
