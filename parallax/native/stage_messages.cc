// Tensors between the stages of a model, as TensorFlow ops that call MPI.
//
// A separate thread carries all messages of a process, in any order: a waiting send or receive occupies no thread of
// TensorFlow's, and a waiting receive delays no other message. A message contains its shape. All messages use one
// communicator; the number of a message is its tag.
//
// TensorFlow cancels a failed run, and so its messages. The process that ran it sends its error in place of the unsent
// messages (parallax_stages_fail), so that the runs of the other stages fail with the same error.
#include <dlfcn.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr long long kInline = 4096;        // bytes that travel with their shape, as one message
constexpr long long kMostBytes = 1 << 30;  // of one MPI message, whose size is an int
constexpr int kTurns = 64;                 // without progress, before the thread sleeps
constexpr auto kShortest = std::chrono::microseconds(20), kLongest = std::chrono::microseconds(320);

std::atomic<int64_t> sent_bytes{0};

// The number of times each message was sent, or its error.
class SentCounts {
 public:
  static SentCounts& Get() {
    static auto* counts = new SentCounts;
    return *counts;
  }

  void Add(int number) {
    std::lock_guard<std::mutex> hold(mutex_);
    ++counts_[number];
  }

  int64_t Of(int number) {
    std::lock_guard<std::mutex> hold(mutex_);
    return counts_[number];
  }

  // Counts a message unless it was already sent so often; returns whether it counted.
  bool AddIfBelow(int number, int64_t times) {
    std::lock_guard<std::mutex> hold(mutex_);
    if (counts_[number] >= times) return false;
    ++counts_[number];
    return true;
  }

 private:
  std::mutex mutex_;
  std::map<int, int64_t> counts_;
};

// A pending op, which completes once: when its message has arrived or been sent, or when its run is cancelled.
class Waiting {
 public:
  Waiting(OpKernelContext* context, std::function<void()> done) : context_(context), done_(std::move(done)) {
    auto* manager = context->cancellation_manager();
    if (manager == nullptr) return;
    token_ = manager->get_cancellation_token();
    is_registered_ = true;
  }

  // Makes a cancelled run complete it; false if the run is cancelled already.
  bool Register(std::shared_ptr<Waiting> self) {
    auto* manager = context_->cancellation_manager();
    return manager == nullptr || manager->RegisterCallback(token_, [self] {
      self->End([](OpKernelContext* context) { context->SetStatus(absl::CancelledError("the run has failed")); }, true);
    });
  }

  // Claims the right to complete it and does so; false if another thread has.
  bool End(const std::function<void(OpKernelContext*)>& last, bool is_cancelled = false) {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      if (is_over_) return false;
      is_over_ = true;
    }
    if (is_registered_ && !is_cancelled) context_->cancellation_manager()->DeregisterCallback(token_);
    last(context_);
    done_();
    return true;
  }

  // Uses the context, unless the op is complete.
  bool Use(const std::function<void(OpKernelContext*)>& use) {
    std::lock_guard<std::mutex> hold(mutex_);
    if (!is_over_) use(context_);
    return !is_over_;
  }

  bool is_over() {
    std::lock_guard<std::mutex> hold(mutex_);
    return is_over_;
  }

 private:
  OpKernelContext* const context_;
  const std::function<void()> done_;
  std::mutex mutex_;
  bool is_over_ = false, is_registered_ = false;
  tensorflow::CancellationToken token_ = 0;
};

// A message in flight: advances each time it is polled.
class Message {
 public:
  virtual ~Message() = default;
  // Whether it has advanced; sets `is_done`.
  virtual bool Advance(MPI_Comm comm, bool* is_done) = 0;
};

// The bytes of a tensor in pieces whose size MPI can count.
template <typename Post>
void InPieces(char* bytes, long long size, std::vector<MPI_Request>* requests, Post post) {
  for (long long begin = 0; begin < size; begin += kMostBytes) {
    requests->emplace_back();
    post(bytes + begin, static_cast<int>(std::min(size - begin, kMostBytes)), &requests->back());
  }
}

bool AllDone(std::vector<MPI_Request>* requests) {
  int is_done = 0;
  MPI_Testall(static_cast<int>(requests->size()), requests->data(), &is_done, MPI_STATUSES_IGNORE);
  return is_done != 0;
}

// A tensor that is sent, or an error in its place.
class Outgoing : public Message {
 public:
  Outgoing(int peer, int number, Tensor value, std::shared_ptr<Waiting> waiting)
      : peer_(peer), number_(number), value_(std::move(value)), waiting_(std::move(waiting)) {}

  Outgoing(int peer, int number, int code, const std::string& text) : peer_(peer), number_(number) {
    const int64_t mark = -1 - code;
    head_.resize(sizeof(mark) + text.size());
    std::memcpy(head_.data(), &mark, sizeof(mark));
    std::memcpy(head_.data() + sizeof(mark), text.data(), text.size());
  }

  bool Advance(MPI_Comm comm, bool* is_done) override {
    if (!is_posted_) {
      Post(comm);
      return is_posted_ = true;
    }
    if (!AllDone(&requests_)) return false;  // also for a cancelled run: MPI owns the memory until then
    *is_done = true;
    if (waiting_ != nullptr) waiting_->End([](OpKernelContext*) {});
    return true;
  }

 private:
  void Post(MPI_Comm comm) {
    const auto data = value_.tensor_data();
    const bool is_error = waiting_ == nullptr;
    const bool is_inline = is_error || static_cast<long long>(data.size()) <= kInline;
    if (!is_error) WriteHead(data, is_inline);
    requests_.emplace_back();
    MPI_Isend(head_.data(), static_cast<int>(head_.size()), MPI_BYTE, peer_, 2 * number_, comm, &requests_.back());
    if (is_error) return;
    sent_bytes += static_cast<int64_t>(data.size());
    if (is_inline) return;
    InPieces(const_cast<char*>(data.data()), data.size(), &requests_, [&](char* piece, int size, MPI_Request* request) {
      MPI_Isend(piece, size, MPI_BYTE, peer_, 2 * number_ + 1, comm, request);
    });
  }

  void WriteHead(absl::string_view data, bool is_inline) {
    std::vector<int64_t> head{value_.dims()};
    for (int i = 0; i < value_.dims(); ++i) head.push_back(value_.dim_size(i));
    head_.resize(head.size() * sizeof(int64_t) + (is_inline ? data.size() : 0));
    std::memcpy(head_.data(), head.data(), head.size() * sizeof(int64_t));
    if (is_inline) std::memcpy(head_.data() + head.size() * sizeof(int64_t), data.data(), data.size());
  }

  const int peer_, number_;
  const Tensor value_;
  const std::shared_ptr<Waiting> waiting_;
  bool is_posted_ = false;
  std::vector<char> head_;
  std::vector<MPI_Request> requests_;
};

class Incoming : public Message {
 public:
  Incoming(int peer, int number, std::shared_ptr<Waiting> waiting)
      : peer_(peer), number_(number), waiting_(std::move(waiting)) {}

  bool Advance(MPI_Comm comm, bool* is_done) override {
    if (!has_shape_) {
      if (waiting_->is_over()) return *is_done = true;
      int has_come = 0;
      MPI_Message message;
      MPI_Status status;
      MPI_Improbe(peer_, 2 * number_, comm, &has_come, &message, &status);
      if (!has_come) return false;
      has_shape_ = true;
      *is_done = TakeHead(comm, &message, &status);
    } else {
      if (!AllDone(&requests_)) return false;
      *is_done = true;
    }
    if (*is_done) {
      waiting_->End([this](OpKernelContext* context) {
        if (status_.ok()) context->set_output(0, value_);
        context->SetStatus(status_);
      });
    }
    return true;
  }

 private:
  // Processes a shape, and the data received with it; returns whether that is all.
  bool TakeHead(MPI_Comm comm, MPI_Message* message, MPI_Status* status) {
    int size = 0;
    MPI_Get_count(status, MPI_BYTE, &size);
    std::vector<char> head(size);
    MPI_Mrecv(head.data(), size, MPI_BYTE, message, MPI_STATUS_IGNORE);
    std::vector<int64_t> numbers(1);
    std::memcpy(numbers.data(), head.data(), sizeof(int64_t));
    if (numbers[0] < 0) {
      const std::string text(head.data() + sizeof(int64_t), head.size() - sizeof(int64_t));
      status_ = absl::Status(static_cast<absl::StatusCode>(-1 - numbers[0]), text);
      return true;
    }
    numbers.resize(1 + numbers[0]);
    std::memcpy(numbers.data(), head.data(), numbers.size() * sizeof(int64_t));
    const TensorShape shape(absl::MakeConstSpan(numbers.data() + 1, numbers.size() - 1));
    const bool is_wanted = waiting_->Use([&](OpKernelContext* context) {
      status_ = context->allocate_temp(context->expected_output_dtype(0), shape, &value_);
    });
    if (!is_wanted || !status_.ok()) return true;
    const auto data = value_.tensor_data();
    char* to = const_cast<char*>(data.data());
    if (static_cast<long long>(data.size()) <= kInline) {
      std::memcpy(to, head.data() + numbers.size() * sizeof(int64_t), data.size());
      return true;
    }
    InPieces(to, data.size(), &requests_, [&](char* piece, int bytes, MPI_Request* request) {
      MPI_Irecv(piece, bytes, MPI_BYTE, peer_, 2 * number_ + 1, comm, request);
    });
    return false;
  }

  const int peer_, number_;
  const std::shared_ptr<Waiting> waiting_;
  bool has_shape_ = false;
  absl::Status status_;
  Tensor value_;  // MPI owns its memory until all has arrived, also for a cancelled run
  std::vector<MPI_Request> requests_;
};

// Carries messages. It lives as long as the process; while no message is in flight its thread waits outside MPI.
class Carrier {
 public:
  explicit Carrier(MPI_Comm comm) : comm_(comm) {
    std::thread([this] { Run(); }).detach();
  }

  void Carry(std::unique_ptr<Message> message) {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      new_.push_back(std::move(message));
    }
    came_.notify_one();
  }

  // Shuts down MPI communication; messages still in flight belong to failed runs.
  void Close() {
    std::unique_lock<std::mutex> hold(mutex_);
    is_closing_ = true;
    came_.notify_one();
    left_.wait(hold, [this] { return has_left_; });
  }

 private:
  void Run() {
    const auto set_polling = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "parallax_thread_polls"));
    if (set_polling != nullptr) set_polling(1);  // a sleep in MPI would delay every message (preload/wait_for_messages.c)
    std::list<std::unique_ptr<Message>> flying;
    int idle = 0;
    auto pause = kShortest;
    for (;;) {
      bool has_new = false;
      {
        std::unique_lock<std::mutex> hold(mutex_);
        if (flying.empty()) {
          came_.wait(hold, [this] { return is_closing_ || !new_.empty(); });
        } else if (idle > kTurns) {
          came_.wait_for(hold, pause, [this] { return is_closing_ || !new_.empty(); });
          pause = std::min(2 * pause, kLongest);
        }
        if (is_closing_) {
          for (auto& one : flying) one.release();  // MPI may still read its memory
          has_left_ = true;
          left_.notify_one();
          return;
        }
        has_new = !new_.empty();
        flying.splice(flying.end(), new_);
      }
      bool has_moved = has_new;
      for (auto one = flying.begin(); one != flying.end();) {
        bool is_done = false;
        has_moved = (*one)->Advance(comm_, &is_done) || has_moved;
        one = is_done ? flying.erase(one) : std::next(one);
      }
      idle = has_moved ? 0 : idle + 1;
      if (has_moved) pause = kShortest;
      if (!has_moved && idle <= kTurns) std::this_thread::yield();
    }
  }

  const MPI_Comm comm_;
  std::mutex mutex_;
  std::condition_variable came_, left_;
  bool is_closing_ = false, has_left_ = false;
  std::list<std::unique_ptr<Message>> new_;
};

std::atomic<Carrier*> carrier{nullptr};

class StageOp : public AsyncOpKernel {
 public:
  explicit StageOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("peer", &peer_));
    OP_REQUIRES_OK(context, context->GetAttr("number", &number_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Carrier* carries = carrier.load();
    OP_REQUIRES_ASYNC(context, carries != nullptr,
                      absl::FailedPreconditionError(absl::StrCat(
                          name(), " has no communicator: open the session by parallel_run.")), done);
    auto waiting = std::make_shared<Waiting>(context, std::move(done));
    auto message = MessageOf(context, waiting);
    if (!waiting->Register(waiting)) {
      waiting->End([](OpKernelContext* failed) { failed->SetStatus(absl::CancelledError("the run has failed")); }, true);
      return;
    }
    carries->Carry(std::move(message));
  }

 protected:
  virtual std::unique_ptr<Message> MessageOf(OpKernelContext* context, std::shared_ptr<Waiting> waiting) const = 0;

  int peer_ = 0, number_ = 0;
};

class SendOp : public StageOp {
 public:
  using StageOp::StageOp;

 protected:
  std::unique_ptr<Message> MessageOf(OpKernelContext* context, std::shared_ptr<Waiting> waiting) const override {
    SentCounts::Get().Add(number_);
    return std::make_unique<Outgoing>(peer_, number_, context->input(0), std::move(waiting));
  }
};

class ReceiveOp : public StageOp {
 public:
  using StageOp::StageOp;

 protected:
  std::unique_ptr<Message> MessageOf(OpKernelContext* context, std::shared_ptr<Waiting> waiting) const override {
    return std::make_unique<Incoming>(peer_, number_, std::move(waiting));
  }
};

}  // namespace

REGISTER_OP("ParallaxSend")
    .Input("value: T")
    .Attr("T: type")
    .Attr("peer: int >= 0")
    .Attr("number: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); })
    .Doc("Sends a tensor to another stage of the model; has run when it is on its way and its memory is free.");
REGISTER_KERNEL_BUILDER(Name("ParallaxSend").Device(tensorflow::DEVICE_CPU), SendOp);

REGISTER_OP("ParallaxReceive")
    .Output("value: T")
    .Attr("T: type")
    .Attr("shape: shape")
    .Attr("peer: int >= 0")
    .Attr("number: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      tensorflow::PartialTensorShape shape;
      TF_RETURN_IF_ERROR(context->GetAttr("shape", &shape));
      tensorflow::shape_inference::ShapeHandle made;
      TF_RETURN_IF_ERROR(context->MakeShapeFromPartialTensorShape(shape, &made));
      context->set_output(0, made);
      return absl::OkStatus();
    })
    .Doc("The tensor that another stage of the model sends under a number.");
REGISTER_KERNEL_BUILDER(Name("ParallaxReceive").Device(tensorflow::DEVICE_CPU), ReceiveOp);

// Sets the communicator of messages between stages, a Fortran handle: the stages of one replica, ranked by stage.
extern "C" void parallax_open_stages(int communicator) {
  if (carrier.load() == nullptr) carrier = new Carrier(MPI_Comm_f2c(communicator));
}

// Shuts down MPI communication before the process exits; no run follows.
extern "C" void parallax_close_stages() {
  Carrier* carries = carrier.exchange(nullptr);
  if (carries != nullptr) carries->Close();
}

// Sends an error in place of a message, unless it was already sent so often: the run that would send it has failed.
extern "C" void parallax_stages_fail(int peer, int number, int64_t times, int code, const char* text) {
  Carrier* carries = carrier.load();
  if (carries != nullptr && SentCounts::Get().AddIfBelow(number, times)) {
    carries->Carry(std::make_unique<Outgoing>(peer, number, code, text));
  }
}

// The number of times a message was sent.
extern "C" long long parallax_stages_times(int number) { return SentCounts::Get().Of(number); }

// Bytes of all tensors that this process has sent to other stages.
extern "C" long long parallax_stages_sent() { return sent_bytes; }
