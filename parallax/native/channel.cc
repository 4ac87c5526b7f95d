#include "channel.h"

#include <map>
#include <thread>
#include <utility>

#include "teams.h"

namespace parallax {

namespace {

std::mutex channels_mutex;

std::map<std::string, Channel*>& Channels() {
  static auto* channels = new std::map<std::string, Channel*>;
  return *channels;
}

}  // namespace

Channel::Channel(MPI_Comm comm, Sums* sums) : comm_(comm), sums_(sums) {
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

// Gives nodes called `name` a communicator of their own among the members of a team (Teams::Find), who must all call it.
extern "C" void parallax_open(const char* name, int teams, const char* among) {
  MPI_Comm comm;
  MPI_Comm_dup(parallax::FindTeams(teams)->Find(among), &comm);
  auto* channel = new parallax::Channel(comm);
  std::lock_guard<std::mutex> hold(parallax::channels_mutex);
  parallax::Channels()[name] = channel;
}

// As parallax_open(), for all-reduces (Sums::Sums): of messages up to bytes[k] by methods[k]. Returns why members of a
// host share no memory, empty where they do.
extern "C" const char* parallax_open_sums(const char* name, int teams, const char* among, long long part_bytes,
                                          int rules, const long long* bytes, const int* methods) {
  parallax::Teams* found = parallax::FindTeams(teams);
  MPI_Comm comm;
  MPI_Comm_dup(found->Find(among), &comm);
  std::vector<parallax::SumRule> wanted;
  for (int k = 0; k < rules; ++k) wanted.push_back({bytes[k], static_cast<parallax::SumMethod>(methods[k])});
  auto* sums = new parallax::Sums(comm, found->host(), part_bytes, std::move(wanted));
  auto* channel = new parallax::Channel(comm, sums);
  std::lock_guard<std::mutex> hold(parallax::channels_mutex);
  parallax::Channels()[name] = channel;
  return sums->why_not_shared().c_str();
}
