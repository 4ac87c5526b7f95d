// Notifies Horovod's thread, which may be asleep (preload/wait_for_tensors.c), that a tensor is about to arrive.
#include <dlfcn.h>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

class AnnounceOp : public tensorflow::OpKernel {
 public:
  explicit AnnounceOp(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    tell_ = reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "parallax_tensor_is_coming"));
  }

  void Compute(tensorflow::OpKernelContext*) override {
    if (tell_ != nullptr) tell_();
  }

  bool IsExpensive() override { return false; }

 private:
  void (*tell_)() = nullptr;
};

}  // namespace

REGISTER_OP("ParallaxAnnounce")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); })
    .Doc("Ends the sleep of Horovod's thread; before every collective.");

REGISTER_KERNEL_BUILDER(Name("ParallaxAnnounce").Device(tensorflow::DEVICE_CPU), AnnounceOp);
