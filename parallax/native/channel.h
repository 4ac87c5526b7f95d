// MPI resources of the nodes at which workers communicate: each node has its own communicator and thread.
#ifndef PARALLAX_NATIVE_CHANNEL_H_
#define PARALLAX_NATIVE_CHANNEL_H_

#include <mpi.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

#include "sums.h"

namespace parallax {

// The task queue of one node. It lives as long as the process: at its end the thread waits.
class Channel {
 public:
  explicit Channel(MPI_Comm comm, Sums* sums = nullptr);

  MPI_Comm comm() const { return comm_; }
  int size() const { return size_; }
  Sums* sums() const { return sums_; }  // of an all-reduce

  void Do(std::function<void()> work);

 private:
  void Run();

  const MPI_Comm comm_;
  Sums* const sums_;
  int size_ = 0;
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<std::function<void()>> waiting_;
};

// The channel of the nodes of a name, nullptr before it was opened (parallax_open).
Channel* FindChannel(const std::string& name);

}  // namespace parallax

#endif  // PARALLAX_NATIVE_CHANNEL_H_
