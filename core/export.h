// Visibility of the library's public symbols. Everything else is hidden.
#pragma once

#if defined(GREYHOUND_SHARED) && defined(_WIN32)
#error "greyhound builds as a shared library on ELF platforms only"
#elif defined(__GNUC__)
#define GREYHOUND_API __attribute__((visibility("default")))
#else
#define GREYHOUND_API
#endif
