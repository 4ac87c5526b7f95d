// The ops of images: variables at one instant, read during training.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "image.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace parallax_frozen {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Var;

std::string NameOf(OpKernelContext* context) {
  return std::string(context->input(0).scalar<tensorflow::tstring>()());
}

absl::Status SpanOf(const std::string& name, const Tensor& tensor, std::vector<Span>* spans) {
  if (!tensor.IsInitialized()) {
    return absl::FailedPreconditionError(absl::StrCat("What is frozen has a value, and ", name, " has none yet."));
  }
  if (!tensorflow::DataTypeCanUseMemcpy(tensor.dtype())) {
    return absl::InvalidArgumentError(absl::StrCat("What is frozen is plain memory, and ", name, " is of type ",
                                                   tensorflow::DataTypeString(tensor.dtype()), "."));
  }
  const auto data = tensor.tensor_data();
  const auto begin = reinterpret_cast<uint64_t>(data.data());
  spans->push_back({begin, begin + data.size()});
  return absl::OkStatus();
}

class FreezeOp : public OpKernel {
 public:
  explicit FreezeOp(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    tensorflow::OpInputList handles, values;
    OP_REQUIRES_OK(context, context->input_list("variables", &handles));
    OP_REQUIRES_OK(context, context->input_list("values", &values));
    std::vector<tensorflow::core::RefCountPtr<Var>> variables(handles.size());
    std::vector<tensorflow::mutex*> mutexes;
    for (int i = 0; i < handles.size(); ++i) {
      const auto& handle = handles[i].scalar<tensorflow::ResourceHandle>()();
      OP_REQUIRES_OK(context, tensorflow::LookupResource(context, handle, &variables[i]));
      mutexes.push_back(variables[i]->mu());
    }
    // No update may be half done. All code that locks several variables uses this order.
    std::sort(mutexes.begin(), mutexes.end());
    mutexes.erase(std::unique(mutexes.begin(), mutexes.end()), mutexes.end());
    std::vector<std::unique_ptr<tensorflow::tf_shared_lock>> locks;
    for (tensorflow::mutex* one : mutexes) locks.push_back(std::make_unique<tensorflow::tf_shared_lock>(*one));
    std::vector<Span> spans;
    for (int i = 0; i < handles.size(); ++i) {
      // Not by a read of the variable: for one that is updated by row, TensorFlow's read is a copy.
      const auto& name = handles[i].scalar<tensorflow::ResourceHandle>()().name();
      OP_REQUIRES_OK(context, SpanOf(name, *variables[i]->tensor(), &spans));
    }
    for (int i = 0; i < values.size(); ++i) {
      OP_REQUIRES_OK(context, SpanOf(absl::StrCat("value ", i), values[i], &spans));
    }
    Tensor* process = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &process));
    pid_t number = 0;
    OP_REQUIRES_OK(context, Keep(NameOf(context), std::move(spans), &number));
    process->scalar<int64_t>()() = number;
  }
};

class FrozenBytesOp : public OpKernel {
 public:
  explicit FrozenBytesOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("is_last", &is_last_));
    OP_REQUIRES_OK(context, context->GetAttr("silent_s", &silent_s_));
  }

  void Compute(OpKernelContext* context) override {
    auto image = Find(NameOf(context));
    OP_REQUIRES_OK(context, image.status());
    const auto place = context->input(1).flat<int64_t>();
    OP_REQUIRES(context, place.size() == 3 && place(2) >= 0,
                absl::InvalidArgumentError("A place in an image is a buffer, the first byte and how many there are."));
    Tensor* found = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({place(2)}), &found));
    char* into = reinterpret_cast<char*>(found->flat<uint8_t>().data());
    OP_REQUIRES_OK(context, (*image)->Read(place(0), place(1), place(2), is_last_, silent_s_, into));
  }

 private:
  bool is_last_;
  int silent_s_;
};

class ThawOp : public OpKernel {
 public:
  explicit ThawOp(OpKernelConstruction* context) : OpKernel(context) {}
  void Compute(OpKernelContext* context) override { Forget(NameOf(context)); }
};

REGISTER_KERNEL_BUILDER(Name("ParallaxFreeze").Device(tensorflow::DEVICE_CPU), FreezeOp);
REGISTER_KERNEL_BUILDER(Name("ParallaxFrozenBytes").Device(tensorflow::DEVICE_CPU), FrozenBytesOp);
REGISTER_KERNEL_BUILDER(Name("ParallaxThaw").Device(tensorflow::DEVICE_CPU), ThawOp);

}  // namespace

REGISTER_OP("ParallaxFreeze")
    .Input("image: string")
    .Input("variables: N * resource")
    .Input("values: T")
    .Output("process: int64")
    .Attr("N: int >= 0")
    .Attr("T: list(type) >= 0")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Makes an image of variables as they are, which costs no copy: the kernel copies a page when it is first written.

image: its name, which no other image of the process has.
variables: its first buffers.
values: its further buffers; a reference variable is taken as it is.
process: that holds the image, on the machine of the op.
)doc");

REGISTER_OP("ParallaxFrozenBytes")
    .Input("image: string")
    .Input("place: int64")
    .Output("bytes: uint8")
    .Attr("is_last: bool = true")
    .Attr("silent_s: int >= 1 = 20")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Vector(tensorflow::shape_inference::InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Reads bytes of an image of this process, whatever session made it.

image: its name.
place: [3], number of the buffer, first byte, and how many.
is_last: nothing of the buffer up to the last of these bytes is read again, and its memory is given back.
silent_s: seconds for which the process that holds the image may give no byte; then the image cannot be read any more.
)doc");

REGISTER_OP("ParallaxThaw")
    .Input("image: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Ends an image and the process that holds it. Without such an image nothing happens.

image: its name.
)doc");

}  // namespace parallax_frozen
