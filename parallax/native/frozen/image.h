// Memory at one instant: the kernel copies a page at its first write.
#ifndef PARALLAX_NATIVE_FROZEN_IMAGE_H_
#define PARALLAX_NATIVE_FROZEN_IMAGE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "child.h"

namespace parallax_frozen {

// Buffers of this process at the instant when the image was made; a separate process holds them.
class Image {
 public:
  // Makes an image of the buffers. ResourceExhausted means that the machine cannot clone the process.
  static absl::StatusOr<std::shared_ptr<Image>> Make(const std::string& name, std::vector<Span> buffers);
  ~Image();
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  // Copies bytes [offset, offset + size) of a buffer to `into`. With `is_last` nothing before their end is read again.
  // Aborted means that the process has ended, DeadlineExceeded that it sent no byte for `silent_s` seconds. After such
  // an error all further reads return it again.
  absl::Status Read(int64_t buffer, int64_t offset, int64_t size, bool is_last, int silent_s, char* into);

  pid_t process() const { return process_; }

 private:
  Image(const std::string& name, std::vector<Span> buffers, pid_t process, int socket)
      : name_(name), buffers_(std::move(buffers)), over_(buffers_.size(), 0), process_(process), socket_(socket) {}
  absl::Status Check(int64_t buffer, int64_t offset, int64_t size) const;
  absl::Status Ended();
  void Reap();

  const std::string name_;
  const std::vector<Span> buffers_;
  std::vector<int64_t> over_;  // number of released bytes of each buffer
  const pid_t process_;
  const int socket_;
  absl::Status lost_;  // why nothing can be read any more
  bool is_reaped_ = false;
  int end_ = 0;  // as returned by waitpid
  std::mutex mutex_;
};

// The images of this process have names, whatever session made them.
absl::Status Keep(const std::string& name, std::vector<Span> buffers, pid_t* process);
absl::StatusOr<std::shared_ptr<Image>> Find(const std::string& name);
void Forget(const std::string& name);  // does nothing if there is none

}  // namespace parallax_frozen

#endif
