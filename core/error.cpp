#include <greyhound/core/error.h>

// Error's constructors are inline; this file holds its vtable and type information, so that an exception thrown by
// one shared library is caught in another.
namespace greyhound {

Error::~Error() = default;

}  // namespace greyhound
