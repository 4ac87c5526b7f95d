#include "channel.h"

#include <map>
#include <thread>
#include <utility>

namespace parallax {

namespace {

std::mutex channels_mutex;

std::map<std::string, Channel*>& Channels() {
  static auto* channels = new std::map<std::string, Channel*>;
  return *channels;
}

}  // namespace

Channel::Channel(MPI_Comm comm) : comm_(comm) {
  MPI_Comm_size(comm_, &size_);
  std::thread([this] { Run(); }).detach();
}

void Channel::Do(std::function<void()> work) {
  {
    std::lock_guard<std::mutex> hold(mutex_);
    waiting_.push_back(std::move(work));
  }
  came_.notify_one();
}

void Channel::Run() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock<std::mutex> hold(mutex_);
      came_.wait(hold, [this] { return !waiting_.empty(); });
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work();
  }
}

Channel* FindChannel(const std::string& name) {
  std::lock_guard<std::mutex> hold(channels_mutex);
  auto found = Channels().find(name);
  return found == Channels().end() ? nullptr : found->second;
}

}  // namespace parallax

// Whether nodes called `name` have a communicator.
extern "C" int parallax_is_open(const char* name) { return parallax::FindChannel(name) != nullptr; }

// Gives nodes called `name` their communicator, a Fortran handle; the same on all workers, and used for nothing else.
extern "C" void parallax_open(const char* name, int communicator) {
  std::lock_guard<std::mutex> hold(parallax::channels_mutex);
  parallax::Channels()[name] = new parallax::Channel(MPI_Comm_f2c(communicator));
}
