// Overlapping runs of a session: each takes its turn at every variable, and at every other stateful resource.
//
// A run may begin while the one before it still updates variables. Each stateful resource has a queue of the runs that
// will touch it, in the order in which they began (parallax_turns_begin). The gate before the resource lets a run
// through when all earlier runs have left: the run's own ops report that by ParallaxLeave, or it has ended
// (parallax_turns_end). So every value read is the one that sequential runs would read; after a failed run no further
// run proceeds. Run 0 stands for a run that overlaps with none: it does not wait.
//
// A run delivers its fetches by ParallaxDeliver as soon as they are computed; another run returns them by
// ParallaxCollect.
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using Callback = std::function<void()>;

// The runs that will touch a resource, in FIFO order.
struct Queue {
  std::deque<int64_t> runs;
  std::unordered_map<int64_t, Callback> waiting;
};

class Turns {
 public:
  static Turns& Get() {
    static auto* turns = new Turns;
    return *turns;
  }

  Queue* Find(const std::string& key) {
    std::lock_guard<std::mutex> hold(mutex_);
    auto& found = queues_[key];
    if (found == nullptr) found = std::make_unique<Queue>();
    return found.get();
  }

  void Begin(int64_t run, const std::vector<Queue*>& queues) {
    std::lock_guard<std::mutex> hold(mutex_);
    for (Queue* queue : queues) queue->runs.push_back(run);
    held_[run] = queues;
    deliveries_[run];  // until Forget
  }

  // Calls back when it is the run's turn; at once if it is not in the queue.
  void Await(Queue* queue, int64_t run, Callback go) {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      const auto place = std::find(queue->runs.begin(), queue->runs.end(), run);
      if (place != queue->runs.end() && place != queue->runs.begin()) {
        queue->waiting[run] = std::move(go);
        return;
      }
    }
    go();
  }

  void Leave(Queue* queue, int64_t run) {
    Callback next;
    {
      std::lock_guard<std::mutex> hold(mutex_);
      next = Left(queue, run);
    }
    if (next) next();
  }

  void End(int64_t run, const std::string& error) {
    std::vector<Callback> next;
    {
      std::lock_guard<std::mutex> hold(mutex_);
      for (Queue* queue : held_[run]) {
        Callback one = Left(queue, run);
        if (one) next.push_back(std::move(one));
      }
      held_.erase(run);
      if (!error.empty() && failure_.empty()) failure_ = error;
      const auto found = deliveries_.find(run);
      if (found != deliveries_.end()) {  // otherwise its values have been collected
        found->second.is_over = true;
        found->second.error = error;
        if (found->second.came) next.push_back(std::move(found->second.came));
      }
    }
    for (Callback& one : next) one();
  }

  void Deliver(int64_t run, std::vector<Tensor> tensors) {
    Callback came;
    {
      std::lock_guard<std::mutex> hold(mutex_);
      const auto found = deliveries_.find(run);
      if (found == deliveries_.end()) return;  // an interrupt has ended the call that would collect them
      found->second.tensors = std::move(tensors);
      found->second.is_there = true;
      came = std::move(found->second.came);
    }
    if (came) came();
  }

  // Calls back when a run has delivered, or has ended without delivering.
  void AwaitDelivery(int64_t run, Callback came) {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      Delivery& delivery = deliveries_[run];
      if (!delivery.is_there && !delivery.is_over) {
        delivery.came = std::move(came);
        return;
      }
    }
    came();
  }

  absl::Status Collect(int64_t run, std::vector<Tensor>* tensors) {
    std::lock_guard<std::mutex> hold(mutex_);
    Delivery& delivery = deliveries_[run];
    if (!delivery.is_there) return absl::AbortedError(absl::StrCat("the run has failed: ", delivery.error));
    *tensors = std::move(delivery.tensors);
    return absl::OkStatus();
  }

  // The error after which no run may proceed; "" if all runs have succeeded since the last Reset.
  std::string failure() {
    std::lock_guard<std::mutex> hold(mutex_);
    return failure_;
  }

  void Reset() {
    std::lock_guard<std::mutex> hold(mutex_);
    failure_.clear();
  }

  void Forget(int64_t run) {
    std::lock_guard<std::mutex> hold(mutex_);
    deliveries_.erase(run);
  }

 private:
  struct Delivery {
    std::vector<Tensor> tensors;
    bool is_there = false, is_over = false;
    std::string error;
    Callback came;
  };

  // With the lock held: the callbacks to call now that a run has left a queue.
  static Callback Left(Queue* queue, int64_t run) {
    const auto place = std::find(queue->runs.begin(), queue->runs.end(), run);
    if (place == queue->runs.end()) return nullptr;
    queue->runs.erase(place);
    if (queue->runs.empty()) return nullptr;
    const auto waits = queue->waiting.find(queue->runs.front());
    if (waits == queue->waiting.end()) return nullptr;
    Callback next = std::move(waits->second);
    queue->waiting.erase(waits);
    return next;
  }

  std::mutex mutex_;
  std::string failure_;
  std::map<std::string, std::unique_ptr<Queue>> queues_;
  std::unordered_map<int64_t, std::vector<Queue*>> held_;
  std::unordered_map<int64_t, Delivery> deliveries_;
};

int64_t RunOf(OpKernelContext* context) { return context->input(0).scalar<int64_t>()(); }

class GateOp : public AsyncOpKernel {
 public:
  explicit GateOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    std::string key;
    OP_REQUIRES_OK(context, context->GetAttr("key", &key));
    queue_ = Turns::Get().Find(key);
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const int64_t run = RunOf(context);
    if (run == 0) return done();
    Turns::Get().Await(queue_, run, [context, done = std::move(done)] {
      const std::string failure = Turns::Get().failure();
      if (!failure.empty()) context->SetStatus(absl::AbortedError(absl::StrCat("a run before has failed: ", failure)));
      done();
    });
  }

 private:
  Queue* queue_ = nullptr;
};

class LeaveOp : public OpKernel {
 public:
  explicit LeaveOp(OpKernelConstruction* context) : OpKernel(context) {
    std::string key;
    OP_REQUIRES_OK(context, context->GetAttr("key", &key));
    queue_ = Turns::Get().Find(key);
  }

  void Compute(OpKernelContext* context) override { Turns::Get().Leave(queue_, RunOf(context)); }

  bool IsExpensive() override { return false; }

 private:
  Queue* queue_ = nullptr;
};

class DeliverOp : public OpKernel {
 public:
  explicit DeliverOp(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    std::vector<Tensor> tensors;
    for (int i = 1; i < context->num_inputs(); ++i) tensors.push_back(context->input(i));
    Turns::Get().Deliver(RunOf(context), std::move(tensors));
  }
};

class CollectOp : public AsyncOpKernel {
 public:
  explicit CollectOp(OpKernelConstruction* context) : AsyncOpKernel(context) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const int64_t run = RunOf(context);
    Turns::Get().AwaitDelivery(run, [context, run, done = std::move(done)] {
      std::vector<Tensor> tensors;
      context->SetStatus(Turns::Get().Collect(run, &tensors));
      for (size_t i = 0; i < tensors.size(); ++i) context->set_output(static_cast<int>(i), tensors[i]);
      done();
    });
  }
};

}  // namespace

REGISTER_OP("ParallaxGate")
    .Input("run: int64")
    .Attr("key: string")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); })
    .Doc("Ends when all earlier runs have left the resource that a key names.");
REGISTER_KERNEL_BUILDER(Name("ParallaxGate").Device(tensorflow::DEVICE_CPU), GateOp);

REGISTER_OP("ParallaxLeave")
    .Input("run: int64")
    .Attr("key: string")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); })
    .Doc("Reports that a run no longer touches the resource that a key names.");
REGISTER_KERNEL_BUILDER(Name("ParallaxLeave").Device(tensorflow::DEVICE_CPU), LeaveOp);

REGISTER_OP("ParallaxDeliver")
    .Input("run: int64")
    .Input("values: T")
    .Attr("T: list(type) >= 1")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); })
    .Doc("Passes tensors of a run to the ParallaxCollect of the same run.");
REGISTER_KERNEL_BUILDER(Name("ParallaxDeliver").Device(tensorflow::DEVICE_CPU), DeliverOp);

REGISTER_OP("ParallaxCollect")
    .Input("run: int64")
    .Output("values: T")
    .Attr("T: list(type) >= 1")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->UnknownShape());
      return absl::OkStatus();
    })
    .Doc("Returns the tensors that a run has delivered, once; fails if the run has ended without delivering.");
REGISTER_KERNEL_BUILDER(Name("ParallaxCollect").Device(tensorflow::DEVICE_CPU), CollectOp);

// A run begins; it will touch the resources of `keys`.
extern "C" void parallax_turns_begin(int64_t run, const char* const* keys, int count) {
  std::vector<Queue*> queues;
  for (int i = 0; i < count; ++i) queues.push_back(Turns::Get().Find(keys[i]));
  Turns::Get().Begin(run, queues);
}

// A run has ended, with an error or with "".
extern "C" void parallax_turns_end(int64_t run, const char* error) { Turns::Get().End(run, error); }

// Discards the delivered values of an ended run, which will not be collected.
extern "C" void parallax_turns_forget(int64_t run) { Turns::Get().Forget(run); }

// Permits runs again after a failed one; none is in flight.
extern "C" void parallax_turns_reset() { Turns::Get().Reset(); }
