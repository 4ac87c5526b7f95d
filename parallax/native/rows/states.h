// A table's variable and its slots, locked for writing in place.
#ifndef PARALLAX_NATIVE_ROWS_STATES_H_
#define PARALLAX_NATIVE_ROWS_STATES_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace parallax_rows {

template <typename T>
class States {
 public:
  // Looks up the variables of inputs [first, first + count). Errors about uninitialized variables are TensorFlow's.
  absl::Status Find(tensorflow::OpKernelContext* context, int first, int count) {
    variables_.resize(count);
    for (int i = 0; i < count; ++i) {
      const auto& handle = tensorflow::HandleFromInput(context, first + i);
      TF_RETURN_IF_ERROR(tensorflow::LookupResource(context, handle, &variables_[i]));
      names_.push_back(handle.name());
    }
    return absl::OkStatus();
  }

  // Acquires the variables' locks in TensorFlow's order, and ensures that nothing else shares their memory.
  absl::Status Lock(tensorflow::OpKernelContext* context) {
    std::vector<tensorflow::mutex*> mutexes;
    for (const auto& variable : variables_) mutexes.push_back(variable->mu());
    std::sort(mutexes.begin(), mutexes.end());
    mutexes.erase(std::unique(mutexes.begin(), mutexes.end()), mutexes.end());
    if (mutexes.size() < variables_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("States are distinct variables; one of ", names_[0], " is twice"));
    }
    for (tensorflow::mutex* one : mutexes) locks_.push_back(std::make_unique<tensorflow::mutex_lock>(*one));
    for (size_t i = 0; i < variables_.size(); ++i) {
      TF_RETURN_IF_ERROR(Check(i));
      TF_RETURN_IF_ERROR(Own(context, variables_[i].get()));
      data_.push_back(variables_[i]->tensor()->template flat<T>().data());
    }
    return absl::OkStatus();
  }

  const tensorflow::TensorShape& shape() const { return variables_[0]->tensor()->shape(); }
  int64_t rows() const { return shape().dim_size(0); }
  int64_t width() const {
    int64_t width = 1;
    for (int axis = 1; axis < shape().dims(); ++axis) width *= shape().dim_size(axis);
    return width;
  }
  T* const* data() const { return data_.data(); }
  const std::string& name() const { return names_[0]; }

 private:
  absl::Status Check(size_t i) {
    const tensorflow::Tensor &tensor = *variables_[i]->tensor(), &table = *variables_[0]->tensor();
    if (!variables_[i]->is_initialized || !tensor.IsInitialized()) {
      return absl::FailedPreconditionError(
          absl::StrCat("Error while reading resource variable ", names_[i],
                       ". This could mean that the variable was uninitialized."));
    }
    if (tensor.dtype() != tensorflow::DataTypeToEnum<T>::value || tensor.dims() == 0 ||
        tensor.shape() != table.shape()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "A table and its slots have one type and one shape with rows, and ", names_[i], " is ",
          tensorflow::DataTypeString(tensor.dtype()), tensor.shape().DebugString(), ", the table ", names_[0], " ",
          tensorflow::DataTypeString(table.dtype()), table.shape().DebugString()));
    }
    return absl::OkStatus();
  }

  // Same as scatter ops (tensorflow/core/kernels/training_op_helpers.h): a read that shares the memory keeps its value.
  static absl::Status Own(tensorflow::OpKernelContext* context, tensorflow::Var* variable) {
    if (variable->copy_on_read_mode.load()) return absl::OkStatus();
    tensorflow::Tensor* tensor = variable->tensor();
    if (!tensor->RefCountIsOne()) {
      tensorflow::Tensor copy;
      TF_RETURN_IF_ERROR(context->allocate_temp(tensor->dtype(), tensor->shape(), &copy));
      std::memcpy(copy.flat<T>().data(), tensor->flat<T>().data(), tensor->TotalBytes());
      *tensor = copy;
    }
    variable->copy_on_read_mode.store(true);
    return absl::OkStatus();
  }

  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
  std::vector<std::unique_ptr<tensorflow::mutex_lock>> locks_;
  std::vector<std::string> names_;
  std::vector<T*> data_;
};

}  // namespace parallax_rows

#endif
