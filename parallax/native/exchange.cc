// The all-to-all of rows between workers, as TensorFlow ops that call MPI.
//
// Every node has its own communicator and thread. A worker sends its messages as soon as its rows are available,
// whatever the other workers are doing, and exchanges of several nodes are in flight concurrently, in any order: no
// prior agreement is needed. The node's name is common to all workers (parallax_open).
#include <mpi.h>

#include <algorithm>
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
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

std::vector<int> Starts(const std::vector<int>& counts) {
  std::vector<int> starts(counts.size(), 0);
  for (size_t i = 1; i < counts.size(); ++i) starts[i] = starts[i - 1] + counts[i - 1];
  return starts;
}

long long Sum(const std::vector<int>& counts) {
  long long sum = 0;
  for (int count : counts) sum += count;
  return sum;
}

// Rows of one exchange: [n, ...], their splits, and either the counts received from each worker or nothing.
class AllToAllOp : public AsyncOpKernel {
 public:
  explicit AllToAllOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    int known;
    OP_REQUIRES_OK(context, context->GetAttr("known", &known));
    known_ = known > 0;
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Channel* channel = Find();
    OP_REQUIRES_ASYNC(context, channel != nullptr,
                      absl::FailedPreconditionError(absl::StrCat(
                          name(), " has no communicator: open the session by parallel_run.")), done);
    std::vector<int> sent, received;
    OP_REQUIRES_OK_ASYNC(context, Counts(context->input(1), channel->size(), &sent), done);
    if (known_) OP_REQUIRES_OK_ASYNC(context, Counts(context->input(2), channel->size(), &received), done);
    const Tensor& rows = context->input(0);
    OP_REQUIRES_ASYNC(context, rows.dims() > 0 && Sum(sent) <= rows.dim_size(0),
                      absl::InvalidArgumentError(absl::StrCat(name(), ": the splits must be rows of the tensor, and are ",
                                                              Sum(sent), " of ", rows.shape().DebugString())),
                      done);
    channel->Do([this, context, done, channel, sent, received]() mutable {
      Exchange(context, channel, sent, &received);
      done();
    });
  }

 private:
  Channel* Find() {
    if (channel_ == nullptr) channel_ = parallax::FindChannel(name());
    return channel_;
  }

  absl::Status Counts(const Tensor& splits, int size, std::vector<int>* counts) const {
    if (splits.dims() != 1 || splits.dim_size(0) != size) {
      return absl::InvalidArgumentError(
          absl::StrCat(name(), ": splits must be [", size, "], and are ", splits.shape().DebugString()));
    }
    auto values = splits.vec<int>();
    counts->assign(values.data(), values.data() + size);
    for (int count : *counts) {
      if (count < 0) {
        return absl::InvalidArgumentError(absl::StrCat(name(), ": splits must not be negative, and one is ", count));
      }
    }
    return absl::OkStatus();
  }

  void Exchange(OpKernelContext* context, Channel* channel, const std::vector<int>& sent, std::vector<int>* received) {
    const Tensor& rows = context->input(0);
    if (!known_) {
      received->resize(sent.size());
      MPI_Alltoall(sent.data(), 1, MPI_INT, received->data(), 1, MPI_INT, channel->comm());
    }
    TensorShape shape = rows.shape();
    shape.set_dim(0, Sum(*received));
    Tensor *output = nullptr, *splits = nullptr;
    context->SetStatus(context->allocate_output(0, shape, &output));
    if (!context->status().ok()) return;
    context->SetStatus(context->allocate_output(1, TensorShape({channel->size()}), &splits));
    if (!context->status().ok()) return;
    std::copy(received->begin(), received->end(), splits->vec<int>().data());
    TensorShape row = rows.shape();
    row.RemoveDim(0);
    const long long row_bytes = row.num_elements() * tensorflow::DataTypeSize(rows.dtype());
    if (row_bytes == 0) return;
    MPI_Datatype type;
    MPI_Type_contiguous(static_cast<int>(row_bytes), MPI_BYTE, &type);
    MPI_Type_commit(&type);
    MPI_Alltoallv(rows.tensor_data().data(), sent.data(), Starts(sent).data(), type,
                  const_cast<char*>(output->tensor_data().data()), received->data(), Starts(*received).data(), type,
                  channel->comm());
    MPI_Type_free(&type);
  }

  bool known_ = false;
  Channel* channel_ = nullptr;
};

}  // namespace

REGISTER_OP("ParallaxAllToAll")
    .Input("rows: T")
    .Input("splits: int32")
    .Input("arriving: known * int32")
    .Output("received: T")
    .Output("received_splits: int32")
    .Attr("T: {int32, int64, half, bfloat16, float, double, int8, uint8, int16, bool}")
    .Attr("known: int >= 0")
    .Attr("among: {'workers', 'host', 'across', 'leaders', 'group', 'stage'}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle rows;
      TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &rows));
      ShapeHandle received;
      TF_RETURN_IF_ERROR(context->ReplaceDim(rows, 0, context->UnknownDim(), &received));
      context->set_output(0, received);
      context->set_output(1, context->input(1));
      return absl::OkStatus();
    })
    .Doc("Sends splits[k] rows to worker k; received has the rows of all workers, by worker.");

REGISTER_KERNEL_BUILDER(Name("ParallaxAllToAll").Device(tensorflow::DEVICE_CPU), AllToAllOp);
